"""Matrix products of sixteen bits, and of TF32, by the offline writer beside the library: sizes of many kinds.

    python tests/bench/sixteen_bit_products.py [--rounds 21] [--dtypes bfloat16 tf32] [--few | --odd | --blocks]

Needs a GPU. TF32 is fp32 with TF32 allowed on both sides. `--few`: products of few rows, of weights of eight bits too,
for which `torch.compile` runs besides. `--odd`: sizes that the copy engine cannot read or store, with `torch.compile`
too, which pads them. `--blocks`: products of transformers' blocks. For each product the writer's CUDA is built by the
judge's compiler with the tile that it would choose for these sizes, checked against float64, and timed in turns with
eager PyTorch by CUDA events: other data in the L2 cache before each call, the host ahead, and a pause, so that the
power limit meets both alike. Ratios are medians of pairs.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import tvm_ffi

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.records import FunctionalProblem, Problem, TensorArgument
from rag_kernels.ingest.functional.functionalize_child import functionalize_here
from rag_kernels.offline.compose import Plan, write
from rag_kernels.offline.cuda.function import CudaParameters
from rag_kernels.offline.cuda.gemm.few_rows import columns_for
from rag_kernels.offline.cuda.gemm.hopper.shape import Product, Shape, best_shape

# name -> (init, arguments with their shapes, body); m rows, n columns, depth k
FORMS: dict[str, tuple[str, dict[str, str], str]] = {
    "x @ y": ("pass", {"x": "m, k", "y": "k, n"}, "return x @ y"),
    "x @ w.T": ("pass", {"x": "m, k", "w": "n, k"}, "return F.linear(x, w)"),
    "x.T @ y": ("pass", {"x": "k, m", "y": "k, n"}, "return x.t() @ y"),
    "bias, GELU": (
        "pass",
        {"x": "m, k", "w": "n, k", "b": "n"},
        "return F.gelu(F.linear(x, w, b), approximate='tanh')",
    ),
    "int8 w": ("pass", {"x": "m, k", "w": "n, k: int8", "s": "n, one"}, "return F.linear(x, w.to(x.dtype) * s)"),
    "SwiGLU": ("pass", {"x": "m, k", "w": "n, k", "v": "n, k"}, "return F.silu(F.linear(x, w)) * F.linear(x, v)"),
    "bias, residual": ("pass", {"x": "m, k", "w": "n, k", "b": "n", "r": "m, n"}, "return F.linear(x, w, b) + r"),
}
SIZES = (
    *(("x @ y", 4096, 4096, 4096), ("x @ w.T", 4096, 4096, 4096), ("x @ w.T", 8192, 4096, 4096)),
    *(("x @ y", 8192, 8192, 8192), ("x @ w.T", 1024, 1024, 1024), ("x @ w.T", 2048, 2048, 2048)),
    *(("x @ w.T", 16384, 1024, 1024), ("x @ w.T", 1024, 1024, 16384), ("x @ w.T", 16, 8192, 8192)),
    *(("x @ w.T", 64, 4096, 4096), ("x @ w.T", 4104, 4088, 4080), ("x.T @ y", 4096, 4096, 8192)),
    *(("x @ w.T", 128, 28672, 8192), ("x @ w.T", 256, 4096, 4096), ("x @ y", 16384, 512, 2048)),
    *(("bias, GELU", 8192, 4096, 4096), ("bias, GELU", 4096, 4096, 1024), ("bias, residual", 8192, 4096, 4096)),
)
FEW = (
    *(("int8 w", m, 8192, 8192) for m in (4, 16, 64)),
    *(("x @ w.T", m, 8192, 8192) for m in (4, 16, 32)),
    *(("x @ w.T", 16, 4096, 4096), ("x @ w.T", 16, 14336, 4096), ("x @ w.T", 16, 4096, 14336)),
)
ODD = (
    *(("x @ w.T", 4099, 4100, 2050), ("x @ y", 4099, 4100, 2050), ("x @ w.T", 8192, 4097, 4096)),
    *(("x @ w.T", 4096, 50257, 768), ("x @ w.T", 2047, 2047, 2047), ("x @ y", 8192, 1000, 2044)),
    *(("bias, GELU", 8192, 4098, 1022), ("bias, residual", 4096, 4095, 4096), ("x.T @ y", 4099, 4097, 2050)),
)
BLOCKS = (
    *(("x @ w.T", 4096, 1152, 4608), ("x @ w.T", 4096, 4608, 1152), ("x @ w.T", 4096, 3456, 1152)),
    *(("x @ w.T", 4096, 1152, 1152), ("x @ w.T", 2048, 2816, 1024), ("x @ w.T", 50176, 768, 192)),
    *(("x @ w.T", 50176, 192, 768), ("x @ w.T", 512, 14336, 4096), ("x @ w.T", 8192, 768, 3072)),
    *(("x @ w.T", 128, 26624, 26624), ("x @ y", 4096, 1152, 4608), ("x @ y", 8192, 768, 3072)),
    *(("bias, GELU", 4096, 4608, 1152), ("bias, residual", 4096, 1152, 4608)),
    *(("SwiGLU", 4096, 11008, 4096), ("SwiGLU", 2048, 2816, 1024), ("SwiGLU", 512, 14336, 4096)),
)
STORED = {"tf32": "float32"}
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def forward(self, {names}):
        {body}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


def planned(
    form: str, dtype: str, sizes: tuple[int, int, int], shape: Shape | None = None
) -> tuple[FunctionalProblem, Plan]:
    """The problem with few terms, and the text with a tile, or with that which the writer chooses for all of them."""
    fp = problem_of(form, dtype, sizes[:2])
    best, few = (shape, 0) if shape else (best_shape(product_of(form, dtype, sizes)), columns_for(*sizes[:2]))
    tile = {"shape": best.rows * 1000 + best.columns, "clusters": best.cluster, "turns": 2 if best.alternate else 1}
    plan = write(fp, CudaParameters(products=2, tensor=1 + (dtype == "tf32"), few=few, **tile))
    assert plan is not None and plan.candidate.tier == "kernel"
    return fp, plan


@functools.cache
def problem_of(form: str, dtype: str, lanes: tuple[int, int]) -> FunctionalProblem:
    """The problem with few terms."""
    init, arguments, body = FORMS[form]
    small = {"m": lanes[0], "n": lanes[1], "k": 80, "one": 1}
    kind = STORED.get(dtype, dtype)
    inputs = ", ".join(
        f"torch.randn({_shape(text, small)}).to(torch.{_kind(text, kind)})" for text in arguments.values()
    )
    text = MODEL.format(init=init, names=", ".join(arguments), body=body, inputs=inputs)
    fp = functionalize_here({"problem": Problem("product", text), "threads": 4})
    assert isinstance(fp, FunctionalProblem), fp
    return fp


def product_of(form: str, dtype: str, sizes: tuple[int, int, int]) -> Product:
    """What the writer chooses a tile for."""
    (m, n, k), tf32 = sizes, dtype == "tf32"
    inside = form in ("x @ y", "x.T @ y")
    lanes = (n, m) if tf32 and form == "x @ y" else (m, n)
    slab = 16 if tf32 or not inside else 64
    astride = (n if inside else k) * (4 if tf32 else 2) % 128 != 0
    registers, leaves = tf32 and inside, not tf32 and n % 8 == 0
    ways = {"registers": registers, "leaves": leaves, "tail": has_tail(form), "astride": astride}
    if form == "SwiGLU":
        lanes, slab = (m, 2 * n), 0
    return Product(*lanes, 1, 2 * k if tf32 else k, slab=slab, **ways)


def has_tail(form: str) -> bool:
    """Whether much is computed or loaded behind the sums."""
    return form.startswith("bias") or form == "SwiGLU"


def _shape(text: str, sizes: dict[str, int]) -> str:
    return ", ".join(str(sizes[letter]) for letter in text.partition(":")[0].split(", "))


def _kind(text: str, kind: str) -> str:
    return text.partition(": ")[2] or kind


def race(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Microseconds of every call, in turns."""
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    times: dict[str, list[float]] = {name: [] for name in calls}
    for number in range(rounds + 2):
        for name in list(calls) if number % 2 else [*calls][::-1]:
            time.sleep(0.003)
            flush.zero_()
            torch.cuda._sleep(500_000)
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            calls[name]()
            end.record()
            torch.cuda.synchronize()
            if number >= 2:
                times[name].append(start.elapsed_time(end) * 1000)
    return times


def arguments_of(form: str, kind: torch.dtype, sizes: dict[str, int]) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Eager's function, and its arguments by name."""
    _, arguments, body = FORMS[form]
    made: dict[str, Any] = {}
    for name, text in arguments.items():
        shape = [int(n) for n in _shape(text, sizes).split(", ")]
        bytes_ = torch.randint(-127, 128, shape, device="cuda", dtype=torch.int8) if ": int8" in text else None
        made[name] = torch.randn(shape, device="cuda").to(kind) if bytes_ is None else bytes_
    scope: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(f"def eager({', '.join(arguments)}): {body}", scope)
    return scope["eager"], made


def inputs_of(fp: FunctionalProblem, made: dict[str, Any]) -> list[Any]:
    """The tensors that a kernel takes, in its order."""
    return [made[a.name] for a in fp.arguments if isinstance(a, TensorArgument)]


def measure(
    form: str, dtype: str, sizes: dict[str, int], fp: FunctionalProblem, library: Any, rounds: int, compiled: bool
) -> Any:
    """One row: both times, the ratio, TFLOP/s and the error over eager's."""
    kind = getattr(torch, STORED.get(dtype, dtype))
    torch.backends.cuda.matmul.allow_tf32 = dtype == "tf32"
    eager, made = arguments_of(form, kind, sizes)
    out = torch.empty(sizes["m"], sizes["n"], device="cuda", dtype=kind)
    inputs = inputs_of(fp, made)
    library.forward(*inputs, *(v for _, v in fp.abi_constants), out)
    rows = slice(-min(sizes["m"], 512), None)
    of_rows = {n: (t[:, rows] if form == "x.T @ y" else t[rows]) if n in "xr" else t for n, t in made.items()}
    exact = eager(**{n: t.double() for n, t in of_rows.items()})
    errors = [(v[rows].double() - exact).pow(2).mean().sqrt().item() for v in (out, eager(**made))]
    ours = lambda: library.forward(*inputs, *(v for _, v in fp.abi_constants), out)  # noqa: E731
    calls = {"eager": lambda: eager(**made), "ours": ours}
    if "int8" in form or compiled:
        torch._dynamo.reset()  # or it gives up after eight functions of one text
        faster = torch.compile(eager, dynamic=False)
        faster(**made)
        calls["compile"] = lambda: faster(**made)
    times = race(calls, rounds)
    best = min((statistics.median(t), n) for n, t in times.items() if n != "ours")[1]
    ratio = statistics.median(a / b for a, b in zip(times[best], times["ours"], strict=True))
    us = {name: statistics.median(t) for name, t in times.items()}
    flops = (4 if form == "SwiGLU" else 2) * sizes["m"] * sizes["n"] * sizes["k"]
    return us | {"ratio": ratio, "tflops": flops / us["ours"] / 1e6, "error": errors[0] / max(errors[1], 1e-30)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--dtypes", nargs="*", default=["bfloat16", "float16"])
    parser.add_argument("--few", action="store_true", help="products of few rows alone")
    parser.add_argument("--odd", action="store_true", help="sizes that are no multiples of eight alone")
    parser.add_argument("--blocks", action="store_true", help="products of transformers' blocks alone")
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    sizes = ODD if asked.odd else FEW if asked.few else BLOCKS if asked.blocks else SIZES
    wanted = [(dtype, *size) for dtype in asked.dtypes for size in sizes]
    plans = [planned(form, dtype, (m, n, k)) for dtype, form, m, n, k in wanted]
    rows = []
    print(torch.cuda.get_device_name(), torch.__version__)
    print(
        "| dtype | product | m | n | k | tile | eager, us | compile, us | ours, us | TFLOP/s | best over ours "
        "| error over eager's |"
    )
    print("|---|---|---:|---:|---:|---|---:|---:|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory() as cache:
        done = build([(p.candidate.source, "cuda") for _, p in plans], tools=toolchain(), cache=Path(cache))
        for (dtype, form, m, n, k), (fp, plan), made in zip(wanted, plans, done, strict=True):
            assert isinstance(made, Built), made
            library = tvm_ffi.load_module(str(made.library))
            row = measure(form, dtype, {"m": m, "n": n, "k": k, "one": 1}, fp, library, asked.rounds, asked.odd)
            found = [
                x.split(" = ")
                for x in plan.candidate.source.split("// tuning")[0].split("constexpr int ")[-1].split(", ")
            ]
            of = {x[0]: x[1].rstrip("; ") for x in found if len(x) == 2}
            tile = f"{of['SHAPE']}, clusters of {of['CLUSTERS']}" + (", in turns" if of["TURNS"] == "2" else "")
            rows.append({"dtype": dtype, "form": form, "m": m, "n": n, "k": k, "tile": tile} | row)
            cells = [f"{row[side]:.1f}" if side in row else "" for side in ("eager", "compile", "ours")]
            cells += [f"{row['tflops']:.0f}", f"{row['ratio']:.3f}"]
            print(
                f"| {dtype} | {form} | {m} | {n} | {k} | {tile} | {' | '.join(cells)} | {row['error']:.2f} |",
                flush=True,
            )
            torch.cuda.empty_cache()
    for dtype in asked.dtypes:
        ratios = [r["ratio"] for r in rows if r["dtype"] == dtype]
        print(
            f"{dtype}: geometric mean {math.exp(statistics.fmean(map(math.log, ratios))):.3f}, least {min(ratios):.3f}"
        )
    if asked.out:
        asked.out.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
