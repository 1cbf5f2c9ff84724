"""Time sorts, scatters, scans and places of the offline writer against PyTorch, on this machine's device.

    python tests/bench/order_scatter.py [cuda|cpu] [NAME...]

Each row: whether numbers are PyTorch's, and medians of both in microseconds, on a GPU behind a delay, with L2 emptied.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import tvm_ffi
from support.generated_kernels import Case, functional, tensors_of

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.compose import write
from rag_kernels.offline.tuning import starting_parameters

CASES = {
    "sort short rows": ("return torch.sort(x, -1)", "torch.randn(4096, 1024)", "torch.randn(1)"),
    "sort rows": ("return torch.sort(x, -1)", "torch.randn(256, 16384)", "torch.randn(1)"),
    "sort one": ("return torch.sort(x, -1)", "torch.randn(1 << 20)", "torch.randn(1)"),
    "sort int64": ("return torch.sort(x, -1)", "torch.randint(0, 1 << 40, (1 << 20,))", "torch.randn(1)"),
    "top 8 of 64": ("return torch.topk(x, 8)", "torch.randn(16384, 64)", "torch.randn(1)"),
    "top 50 of a vocabulary": ("return torch.topk(x, 50)", "torch.randn(64, 128256)", "torch.randn(1)"),
    "scatter_add": (
        "return x.new_zeros(4096, 512).scatter_add(1, y, x)",
        "torch.randn(4096, 2048)",
        "torch.randint(0, 512, (4096, 2048))",
    ),
    "index_add": (
        "return x.new_zeros(10000, 128).index_add(0, y, x)",
        "torch.randn(200000, 128)",
        "torch.randint(0, 10000, (200000,))",
    ),
    "embedding backward": (
        "return torch.ops.aten.embedding_dense_backward(x, y, 32000, -1, False)",
        "torch.randn(8192, 1024)",
        "torch.randint(0, 32000, (8192,))",
    ),
    "histogram": ("return torch.histc(x, 100, -3, 3)", "torch.randn(1 << 22)", "torch.randn(1)"),
    "searchsorted": ("return torch.searchsorted(y, x)", "torch.randn(1 << 22)", "torch.randn(65536).sort()[0]"),
    "cumsum": ("return x.cumsum(-1)", "torch.randn(4096, 4096)", "torch.randn(1)"),
    "cummax": ("return x.cummax(-1)", "torch.randn(2048, 4096)", "torch.randn(1)"),
    "logcumsumexp": ("return x.logcumsumexp(-1)", "torch.randn(2048, 4096)", "torch.randn(1)"),
    "grid_sample": (
        "return F.grid_sample(x, y, align_corners=False)",
        "torch.randn(8, 64, 128, 128)",
        "torch.rand(8, 128, 128, 2) * 2 - 1",
    ),
    "fold": ("return F.fold(x, (128, 128), 3, padding=1)", "torch.randn(8, 32 * 9, 16384)", "torch.randn(1)"),
}


def main(device: str, names: list[str]) -> None:
    for name, texts in CASES.items():
        if not names or name in names:
            try:
                print(row(name, Case(*texts), device), flush=True)
            except Exception as error:  # one that fails costs its row alone
                print(f"{name:24} {type(error).__name__}: {str(error)[-400:]}", flush=True)


def row(name: str, case: Case, device: str) -> str:
    """Return a line on one problem."""
    fp = functional(name.replace(" ", "_"), case)
    plan = write(fp, starting_parameters(device, "sm_90"))
    if plan is None or plan.candidate.tier != "kernel":
        return f"{name:24} left to the library: {plan and plan.library}"
    [built] = build([(plan.candidate.source, device)], tools=toolchain(), cache=Path(tempfile.mkdtemp()))
    if not isinstance(built, Built):
        return f"{name:24} not built: {built}"
    kernel = tvm_ffi.load_module(str(built.library))
    if device == "cuda" and not torch.cuda.is_available():
        return f"{name:24} built"
    scope: dict[str, Any] = {}
    exec(fp.problem.source, scope)
    torch.manual_seed(0)
    model, inputs = scope["Model"](), [t.to(device) for t in scope["get_inputs"]()]
    outputs = [torch.empty(s.shape, dtype=getattr(torch, s.dtype), device=device) for s in fp.outputs]
    arguments = (*tensors_of(fp, model, inputs), *(v for _, v in fp.abi_constants), *outputs)
    wanted = model(*inputs)
    kernel.forward(*arguments)
    told = agreement(fp, outputs, wanted if isinstance(wanted, tuple) else (wanted,))
    ours, theirs = (median_us(call, device) for call in (lambda: kernel.forward(*arguments), lambda: model(*inputs)))
    return f"{name:24} {told:28} ours {ours:9.1f} us, PyTorch {theirs:9.1f} us, {theirs / ours:5.2f} times"


def agreement(fp: FunctionalProblem, ours: list[torch.Tensor], theirs: tuple[torch.Tensor, ...]) -> str:
    """Return how far results are from PyTorch's; differing indices are counted, since equal elements may change."""
    texts = []
    for a, b in zip(ours, theirs, strict=True):
        if a.is_floating_point():
            texts.append(f"{float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)):.1e}")
        else:
            texts.append(f"{int((a != b).sum())} of {a.numel()} differ")
    return ", ".join(texts)


def median_us(call: Callable[[], object], device: str) -> float:
    """Return the median time of a call."""
    times = []
    if device == "cpu":
        for _ in range(7):
            start = time.perf_counter()
            call()
            times.append((time.perf_counter() - start) * 1e6)
        return statistics.median(times[1:])
    flush = torch.empty(64 << 20, dtype=torch.int32, device="cuda")
    call()
    for _ in range(9):
        flush.zero_()
        torch.cuda._sleep(400_000)
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(start.elapsed_time(end) * 1e3)
    return statistics.median(times)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu", sys.argv[2:])
