"""Functions of C++ kernels beside C's library and PyTorch: how exact each is, and what an element costs.

    python tests/bench/function_texts.py [NAME...]

Prints a table of Markdown. Errors, in units of the last place against fp64, are of every 499th of all floats (of two
operands, of pairs at random); times are of 16,384 elements that stay in the cache, drawn from the standard normal
distribution (its absolute value and one half where negative numbers have no result, a sigmoid for those of -1 to 1),
on one thread by processor time: the least of 30 rounds, in which the texts take turns.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

os.environ["OMP_NUM_THREADS"] = "1"
sys.path.insert(0, str(Path(__file__).parent.parent))

import torch
from support.generated_kernels import Case, caller, functional

from rag_kernels.offline.codegen import math_prelude
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters

SIZE, STEP, ROUNDS, CALLS = 1 << 14, 499, 30, 40
SMALL, POSITIVE = (
    ("asin", "acos", "atanh", "erfinv"),
    ("log", "log1p", "log2", "log10", "sqrt", "acosh", "lgamma", "pow"),
)
OURS = ["exp", "exp2", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf"]
OURS += [name[3:] for name in math_prelude.cpp_functions.TEXTS if hasattr(torch, name[3:])]
TWO = ("pow", "atan2", "hypot")
Kernel = Callable[..., list[torch.Tensor]]


def kernel(name: str, size: int, folder: Path) -> Kernel:
    """Return a kernel of the function alone, of x, and of y for those of two operands."""
    operands = "x, y" if name in TWO else "x"
    fp = functional(name, Case(f"return torch.{name}({operands})", *[f"torch.rand({size})"] * 2))
    plan = write(fp, CpuParameters())
    assert plan is not None and not plan.library, name
    return caller(plan, fp, folder)


def of_library(name: str, size: int, folder: Path) -> Kernel | None:
    """Return the same kernel with the function of C's library, if it has one."""
    if name == "erfinv":
        return None
    kept = math_prelude.CPP[f"rk_{name}"]
    math_prelude.CPP[f"rk_{name}"] = math_prelude._wrapped(name, cuda=False)
    try:
        return kernel(name, size, folder)
    finally:
        math_prelude.CPP[f"rk_{name}"] = kept


def operands(name: str, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return operands of which the function has results that are ordinary numbers."""
    x, y = torch.randn(size), torch.randn(size)
    return x.sigmoid() if name in SMALL else x.abs() + 0.5 if name in POSITIVE else x, y


def all_floats(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return numbers from the whole range, or pairs of them."""
    x = torch.arange(-(1 << 31), 1 << 31, STEP, dtype=torch.int64).to(torch.int32).view(torch.float32)
    y = torch.randn(len(x)) * 3
    return (torch.randn(len(x)).abs() * 10, y) if name in TWO else (x, y)


def worst(name: str, call: Kernel) -> float:
    """Return the largest error in units of the last place, of results that are normal numbers."""
    torch.manual_seed(5)
    x, y = all_floats(name)
    [ours] = call(x, y)
    wide = (x.double(), y.double()) if name in TWO else (x.double(),)
    exact = getattr(torch, name)(*wide)
    assert torch.equal(ours.isnan(), exact.isnan()), name
    fair = exact.float().isfinite() & ours.isfinite() & (exact.abs() > 1.7e-38)
    if name == "lgamma":
        fair &= x > 0
    exact = exact[fair]
    unit = torch.ldexp(torch.ones_like(exact), torch.frexp(exact)[1] - 24)
    return float(((ours.double()[fair] - exact).abs() / unit).max())


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
    count = len(range(-(1 << 31), 1 << 31, STEP))
    print("| function | error, ulp | C's library, ns | ours, ns | PyTorch, ns | PyTorch over ours |")
    print("|---|---:|---:|---:|---:|---:|")
    for name in sys.argv[1:] or OURS:
        with tempfile.TemporaryDirectory() as folder:
            error = worst(name, kernel(name, count, Path(folder)))
            x, y = operands(name, SIZE)
            ours, theirs = kernel(name, SIZE, Path(folder)), of_library(name, SIZE, Path(folder))
            given = (x, y) if name in TWO else (x,)
            calls: list[Callable[[], object]] = [
                lambda o=ours, x=x, y=y: o(x, y),
                lambda n=name, g=given: getattr(torch, n)(*g),
            ]
            if theirs:
                calls.append(lambda o=theirs, x=x, y=y: o(x, y))
            mine, eager, *rest = nanoseconds(calls)
        library = f"{rest[0]:.2f}" if rest else ""
        print(f"| `{name}` | {error:.2f} | {library} | {mine:.2f} | {eager:.2f} | {eager / mine:.2f} |", flush=True)


if __name__ == "__main__":
    main()
