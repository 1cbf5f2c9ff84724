"""Functions of C++ kernels beside C's library and PyTorch: how exact each is, and what an element costs.

    python tests/bench/function_texts.py [--dtype bfloat16] [NAME...]

Prints a table of Markdown. Errors, in units of the last place against fp64, are of every 499th of all floats, or of all
numbers of sixteen bits (of two operands, of pairs at random; of positive ones for `lgamma`, `silu` and `gelu`); times
are of 16,384 elements that stay in the cache, drawn from the standard normal distribution (its absolute value and one
half where negative numbers have no result, a sigmoid for those of -1 to 1), on one thread by processor time: the least
of 30 rounds, in which the texts take turns. Our kernel writes where its caller says, PyTorch to what it allocates.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
import torch.nn.functional as F
from support.generated_kernels import Case, build, empty_outputs, functional, halved

from rag_kernels.offline.codegen import math_prelude
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters

SIZE, STEP, ROUNDS, CALLS = 1 << 14, 499, 30, 40
SMALL, POSITIVE = (
    ("asin", "acos", "atanh", "erfinv"),
    ("log", "log1p", "log2", "log10", "sqrt", "acosh", "lgamma", "pow"),
)
OURS = ["exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf", "sigmoid", "silu", "gelu", "softplus"]
OURS += [name[3:] for name in math_prelude.cpp_functions.TEXTS if hasattr(torch, name[3:])]
TWO = ("pow", "atan2", "hypot")
Kernel = Callable[..., list[torch.Tensor]]


def function(name: str) -> Callable[..., torch.Tensor]:
    """Return PyTorch's function of this name."""
    found: Callable[..., torch.Tensor] = getattr(torch, name, None) or getattr(F, name)
    return found


def kernel(name: str, dtype: torch.dtype, size: int, folder: Path) -> Kernel:
    """Return a kernel of the function alone, of x, and of y for those of two operands."""
    called = f"{'torch' if hasattr(torch, name) else 'F'}.{name}({'x, y' if name in TWO else 'x'})"
    fp = functional(name, halved(Case(f"return {called}", *[f"torch.rand({size})"] * 2), str(dtype)[6:]))
    plan = write(fp, CpuParameters())
    assert plan is not None and plan.candidate.tier == "kernel", name
    module, made = build(plan.candidate.source, folder), empty_outputs(fp)

    def call(*tensors: torch.Tensor) -> list[torch.Tensor]:
        module.forward(*tensors, *made)
        return made

    return call


def of_library(name: str, dtype: torch.dtype, size: int, folder: Path) -> Kernel | None:
    """Return the same kernel with the function of C's library, if it has one."""
    if name == "erfinv" or name not in math_prelude.LIBM:
        return None
    kept = math_prelude.CPP[f"rk_{name}"]
    math_prelude.CPP[f"rk_{name}"] = math_prelude._wrapped(name, cuda=False)
    try:
        return kernel(name, dtype, size, folder)
    finally:
        math_prelude.CPP[f"rk_{name}"] = kept


def operands(name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return operands of which the function has results that are ordinary numbers."""
    x, y = torch.randn(size), torch.randn(size)
    return x.sigmoid() if name in SMALL else x.abs() + 0.5 if name in POSITIVE else x, y


def all_numbers(name: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers from the whole range, or pairs of them."""
    short, step = dtype.itemsize == 2, 1 if dtype.itemsize == 2 else STEP
    end = 1 << dtype.itemsize * 8 - 1
    whole = torch.arange(-end, end, step, dtype=torch.int64)
    x = whole.to(torch.int16 if short else torch.int32).view(dtype)
    y = (torch.randn(len(x)) * 3).to(dtype)
    return ((torch.randn(len(x)).abs() * 10).to(dtype), y) if name in TWO else (x, y)


def worst(name: str, dtype: torch.dtype, folder: Path) -> tuple[float, float]:
    """Return the largest errors in units of the last place, ours and PyTorch's, where results are normal numbers."""
    torch.manual_seed(5)
    x, y = all_numbers(name, dtype)
    [ours] = kernel(name, dtype, len(x), folder)(x, y)
    taken = (x, y) if name in TWO else (x,)
    exact, theirs = function(name)(*(tensor.double() for tensor in taken)), function(name)(*taken)
    assert torch.equal(ours.isnan(), exact.isnan()), name
    fair = exact.to(dtype).isfinite() & ours.isfinite() & theirs.isfinite() & (exact.abs() > 1.7e-38)
    if name in ("lgamma", "silu", "gelu"):
        fair &= x > 0
    exact = exact[fair]
    unit = torch.ldexp(torch.ones_like(exact), torch.frexp(exact)[1]) * torch.finfo(dtype).eps / 2
    ours_off, theirs_off = (float(((found.double()[fair] - exact).abs() / unit).max()) for found in (ours, theirs))
    return ours_off, theirs_off


def nanoseconds(calls: list[Callable[[], object]]) -> list[float]:
    """Return the least time of an element by each function."""
    best = [float("inf")] * len(calls)
    for _ in range(ROUNDS):
        for place, call in enumerate(calls):
            start = time.thread_time()
            for _ in range(CALLS):
                call()
            best[place] = min(best[place], (time.thread_time() - start) * 1e9 / CALLS / SIZE)
    return best


def main() -> None:
    torch.set_num_threads(1)
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", default=OURS)
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    given = parser.parse_args()
    dtype = getattr(torch, given.dtype)
    print("| function | error, ulp | PyTorch's | C's library, ns | ours, ns | PyTorch, ns | PyTorch over ours |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for name in given.names:
        with tempfile.TemporaryDirectory() as folder:
            error, other = worst(name, dtype, Path(folder))
            x, y = (tensor.to(dtype) for tensor in operands(name, SIZE))
            ours, theirs = (made(name, dtype, SIZE, Path(folder)) for made in (kernel, of_library))
            taken = (x, y) if name in TWO else (x,)
            assert ours is not None
            calls: list[Callable[[], object]] = [partial(ours, x, y), partial(function(name), *taken)]
            if theirs:
                calls.append(partial(theirs, x, y))
            mine, eager, *rest = nanoseconds(calls)
        library = f"{rest[0]:.2f}" if rest else ""
        errors = f"{error:.2f} | {other:.2f}"
        print(f"| `{name}` | {errors} | {library} | {mine:.2f} | {eager:.2f} | {eager / mine:.2f} |", flush=True)


if __name__ == "__main__":
    main()
