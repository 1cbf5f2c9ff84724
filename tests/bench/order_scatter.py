"""Time sorts, scatters, scans and places of the offline writer against PyTorch, on this machine's device.

    python tests/bench/order_scatter.py [cuda|cpu] [NAME...] > rows.txt
    python tests/bench/order_scatter.py table rows.txt  # the same as Markdown

Each row: what one kernel makes of two sizes with fresh inputs, and medians of ours and PyTorch's in microseconds at the
first, on a GPU by events behind a delay, with L2 emptied. Sums are wrong above the judge's 64 times PyTorch's own
error; of indices that differ those are told that name an equal element.
"""

from __future__ import annotations

import copy
import os
import re
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
import tvm_ffi
from support.generated_kernels import Case, error_ratio, functional, tensors_of

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.compose import write
from rag_kernels.offline.tuning import starting_parameters

JUDGED, ROW_S = 64, 60
NONE = "torch.randn(1)"


def of_one(body: str, large: str, small: str) -> tuple[str, str, str, str, str]:
    """A case of one tensor, at two sizes."""
    return body, large, NONE, small, NONE


CASES = {  # what is computed, and two pairs of inputs
    "sort short rows": of_one("return torch.sort(x, -1)", "torch.randn(4096, 1024)", "torch.randn(77, 1000)"),
    "sort rows": of_one("return torch.sort(x, -1)", "torch.randn(256, 16384)", "torch.randn(3, 20001)"),
    "sort one": of_one("return torch.sort(x, -1)", "torch.randn(1 << 20)", "torch.randn(300001)"),
    "sort int64": of_one(
        "return torch.sort(x, dim=-1, stable=True)",
        "torch.randint(0, 1 << 40, (1 << 20,))",
        "torch.randint(-9, 9, (70001,))",
    ),
    "argsort int32 of few": of_one(
        "return torch.argsort(x, dim=-1, stable=True)",
        "torch.randint(0, 64, (1 << 18,), dtype=torch.int32)",
        "torch.randint(0, 64, (1023,), dtype=torch.int32)",
    ),
    "top 8 of 64": of_one("return torch.topk(x, 8)", "torch.randn(16384, 64)", "torch.randn(101, 99)"),
    "top 50 of a vocabulary": of_one(
        "return torch.topk(x, 50)", "torch.randn(64, 128256)", "torch.randint(0, 999, (3, 50257)).float()"
    ),
    "top 50, bfloat16": of_one(
        "return torch.topk(x, 50)", "torch.randn(64, 128256).bfloat16()", "torch.randn(3, 50257).bfloat16()"
    ),
    "median": of_one("return torch.median(x, -1)", "torch.randn(8192, 1023)", "torch.randn(33, 100)"),
    "median of one": of_one("return x.median()", "torch.randn(1 << 20)", "torch.randn(100001)"),
    "quantile": of_one("return x.quantile(0.9, -1)", "torch.randn(8192, 1023)", "torch.randn(33, 100)"),
    "kthvalue of rows": of_one("return x.kthvalue(99, -1)", "torch.randn(256, 16384)", "torch.randn(3, 20001)"),
    "sort rows of 100": of_one("return torch.sort(x, -1)", "torch.randn(65536, 100)", "torch.randn(77, 99)"),
    "top 1000 of a vocabulary": of_one(
        "return torch.topk(x, 1000)", "torch.randn(64, 128256)", "torch.randint(0, 999, (3, 50257)).float()"
    ),
    "top 50, uniform": of_one("return torch.topk(x, 50)", "torch.rand(64, 128256)", "torch.rand(3, 50257)"),
    "scatter_add": (
        "return x.new_zeros(x.shape[0], 512).scatter_add(1, y, x)",
        "torch.randn(4096, 2048)",
        "torch.randint(0, 512, (4096, 2048))",
        "torch.randn(99, 777)",
        "torch.randint(0, 512, (99, 777))",
    ),
    "scatter_reduce amax": (
        "return x.new_zeros(x.shape[0], 512).scatter_reduce(1, y, x, 'amax')",
        "torch.randn(4096, 2048)",
        "torch.randint(0, 512, (4096, 2048))",
        "torch.randn(99, 777)",
        "torch.randint(0, 512, (99, 777))",
    ),
    "index_add": (
        "return x.new_zeros(10000, 128).index_add(0, y, x)",
        "torch.randn(200000, 128)",
        "torch.randint(0, 10000, (200000,))",
        "torch.randn(20001, 128)",
        "torch.randint(0, 100, (20001,))",
    ),
    "index_put accumulate": (
        "return x.new_zeros(10000, 128).index_put((y,), x, accumulate=True)",
        "torch.randn(200000, 128)",
        "torch.randint(0, 10000, (200000,))",
        "torch.randn(20001, 128)",
        "torch.randint(0, 100, (20001,))",
    ),
    "embedding backward": (
        "return torch.ops.aten.embedding_dense_backward(x, y, 32000, -1, False)",
        "torch.randn(8192, 1024)",
        "torch.randint(0, 32000, (8192,))",
        "torch.randn(99, 1024)",
        "torch.randint(0, 9, (99,))",
    ),
    "embedding bag": (
        "return F.embedding_bag(y, x, torch.arange(0, 200000, 20, device=x.device))",
        "torch.randn(100000, 128)",
        "torch.randint(0, 100000, (200000,))",
        "torch.randn(100, 128)",
        "torch.randint(0, 100, (200000,))",
    ),
    "segment sums": of_one(
        "return torch.segment_reduce(x, 'sum', offsets=torch.arange(x.shape[0] // 20 + 1, device=x.device) * 20)",
        "torch.randn(200000, 128)",
        "torch.randn(200000, 40)",
    ),
    "sums of bags, bfloat16": (
        "return F.embedding_bag(y, x, torch.arange(0, 200000, 20, device=x.device), mode='sum')",
        "torch.randn(100000, 128).bfloat16()",
        "torch.randint(0, 100000, (200000,))",
        "torch.randn(1000, 128).bfloat16()",
        "torch.randint(0, 1000, (200000,))",
    ),
    "skewed segments": (  # many empty ones, some of a thousand rows, and one of half of all
        "o = torch.cat([y[:1] * 0, y**64 / 2, y[:1] * 0 + 1]) * x.shape[0];"
        "return torch.segment_reduce(x, 'sum', offsets=o.long())",
        "torch.randn(200000, 128)",
        "torch.rand(10000).sort()[0]",
        "torch.randn(200000, 40)",
        "torch.rand(100).sort()[0]",
    ),
    "histogram": of_one("return torch.histc(x, 100, -3, 3)", "torch.randn(1 << 22)", "torch.randn(99999)"),
    "searchsorted": (
        "return torch.searchsorted(y, x)",
        "torch.randn(1 << 22)",
        "torch.randn(65536).sort()[0]",
        "torch.randn(4099)",
        "torch.randn(999).sort()[0]",
    ),
    "cumsum": of_one("return x.cumsum(-1)", "torch.randn(4096, 4096)", "torch.randn(33, 999)"),
    "cumsum of columns": of_one("return x.cumsum(0)", "torch.randn(4096, 4096)", "torch.randn(33, 999)"),
    "cummax": of_one("return x.cummax(-1)", "torch.randn(2048, 4096)", "torch.randn(33, 999)"),
    "logcumsumexp": of_one("return x.logcumsumexp(-1)", "torch.randn(2048, 4096)", "torch.randn(33, 999)"),
    "gather": (
        "return x.gather(1, y)",
        "torch.randn(4096, 4096)",
        "torch.randint(0, 4096, (4096, 4096))",
        "torch.randn(33, 999)",
        "torch.randint(0, 999, (33, 100))",
    ),
    "grid_sample": (
        "return F.grid_sample(x, y, align_corners=False)",
        "torch.randn(8, 64, 128, 128)",
        "torch.rand(8, 128, 128, 2) * 2 - 1",
        "torch.randn(2, 3, 77, 99)",
        "torch.rand(2, 55, 33, 2) * 3 - 1",
    ),
    "unfold": of_one("return F.unfold(x, 3, padding=1)", "torch.randn(8, 32, 128, 128)", "torch.randn(2, 3, 128, 128)"),
    "fold": of_one(
        "return F.fold(x, (128, 128), 3, padding=1)", "torch.randn(8, 32 * 9, 16384)", "torch.randn(2, 32 * 9, 16384)"
    ),
    "max_pool with indices": of_one(
        "return F.max_pool2d(x, 3, 2, 1, return_indices=True)",
        "torch.randn(16, 64, 112, 112)",
        "torch.randn(2, 3, 56, 56)",
    ),
    "max_pool backward": (
        "return torch.ops.aten.max_pool2d_with_indices_backward("
        "y, x, [2, 2], [2, 2], [0, 0], [1, 1], False, F.max_pool2d(x, 2, return_indices=True)[1])",
        "torch.randn(16, 64, 112, 112)",
        "torch.randn(16, 64, 56, 56)",
        "torch.randn(2, 3, 56, 56)",
        "torch.randn(2, 3, 28, 28)",
    ),
}
Written = tuple[str, FunctionalProblem, str] | str  # its name, the problem and the kernel; or why there is none


def main(device: str, names: list[str]) -> None:
    start = time.perf_counter()
    chosen = [name for name in CASES if not names or name in names]
    workers = max(1, min(len(chosen), (os.cpu_count() or 2) * 3 // 4))
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        made = list(pool.map(written, chosen, [device] * len(chosen)))
    for told in (m for m in made if isinstance(m, str)):
        print(told, flush=True)
    kernels = [m for m in made if not isinstance(m, str)]
    print(f"{len(kernels)} of {len(chosen)} written in {time.perf_counter() - start:.0f} s", flush=True)
    libraries = build([(source, device) for _, _, source in kernels], tools=toolchain(), cache=Path(tempfile.mkdtemp()))
    print(f"built in {time.perf_counter() - start:.0f} s", flush=True)
    pool = one_worker()
    for (name, fp, _), library in zip(kernels, libraries, strict=True):
        try:
            told = pool.submit(row, name, fp, library, device).result(timeout=ROW_S)
        except (
            Exception
        ) as error:  # one that fails costs its row alone: a fault of the device outlasts it in its process
            told = f"{type(error).__name__}: {str(error)[-400:]}"
            for process in list((pool._processes or {}).values()):
                process.kill()
            pool = one_worker()
        print(f"{name:24} {told}", flush=True)


def one_worker() -> ProcessPoolExecutor:
    return ProcessPoolExecutor(1, mp_context=get_context("spawn"))


def written(name: str, device: str) -> Written:
    """Return the kernel of one problem."""
    torch.set_num_threads(1)
    try:
        fp = functional(name.replace(" ", "_").replace(",", ""), Case(*CASES[name][:3]))
        plan = write(fp, starting_parameters(device, "sm_90"))
    except Exception as error:
        return f"{name:24} {type(error).__name__}: {str(error)[-400:]}"
    if plan is None or plan.candidate.tier != "kernel":
        return f"{name:24} left to the library: {plan and plan.library}"
    return name, fp, plan.candidate.source


def row(name: str, fp: FunctionalProblem, library: object, device: str) -> str:
    """Return what came of one kernel."""
    if not isinstance(library, Built):
        return f"not built: {str(library)[-600:]}"
    if device == "cuda" and not torch.cuda.is_available():
        return "built"
    kernel = tvm_ffi.load_module(str(library.library))
    texts = CASES[name]
    told = []
    for number, (x, y) in enumerate((texts[1:3], texts[3:])):
        ours, theirs, verdict = one_size(fp, kernel, (x, y), device, number)
        told.append(verdict)
        if number == 0 and "refused" not in verdict:
            times = [median_us(call, device) for call in (ours, theirs)]
    ratio = times[1] / times[0]
    return f"ours {times[0]:9.1f} us, PyTorch {times[1]:9.1f} us, {ratio:5.2f} times; {'; '.join(told)}"


def one_size(
    fp: FunctionalProblem, kernel: Any, texts: tuple[str, str], device: str, seed: int
) -> tuple[Callable[[], object], Callable[[], object], str]:
    """Return calls of ours and of PyTorch's with new inputs, and how their results agree."""
    scope: dict[str, Any] = {}
    exec(fp.problem.source, scope)
    torch.manual_seed(11 + seed)
    model, inputs = scope["Model"](), [eval(t, {"torch": torch}).to(device) for t in texts]
    wanted = several(model(*inputs))
    poison = [99 if not w.is_floating_point() else float("nan") for w in wanted]
    outputs = [
        torch.full_like(w, p, memory_format=torch.contiguous_format) for w, p in zip(wanted, poison, strict=True)
    ]
    arguments = (*tensors_of(fp, model, inputs), *(v for _, v in fp.abi_constants), *outputs)
    try:
        kernel.forward(*arguments)
        exact = several(copy.deepcopy(model).double()(*(t.double() if t.is_floating_point() else t for t in inputs)))
        told = ", ".join(agreement(inputs[0], outputs, wanted, exact))
    except (RuntimeError, ValueError) as error:
        told = f"refused: {str(error)[-200:]}"
    return lambda: kernel.forward(*arguments), lambda: model(*inputs), told


def several(result: Any) -> tuple[torch.Tensor, ...]:
    return tuple(result) if isinstance(result, tuple) else (result,)


def agreement(
    x: torch.Tensor, ours: list[torch.Tensor], theirs: tuple[torch.Tensor, ...], exact: tuple[torch.Tensor, ...]
) -> Iterator[str]:
    """Yield how each result is beside PyTorch's."""
    for a, b, c in zip(ours, theirs, exact, strict=True):
        if a.is_floating_point():
            ratio = error_ratio(a, b, c)
            yield "equal" if torch.equal(a, b) else f"{ratio:.1f} times its error" + (" WRONG" * (not ratio <= JUDGED))
        elif torch.equal(a, b):
            yield "equal"
        else:
            differ, same = a != b, tied(x, a, b)
            wrong = int((differ & ~same).sum()) if same is not None else int(differ.sum())
            yield f"{int(differ.sum())} of {a.numel()} differ, {wrong or 'none'} but for ties" + " WRONG" * bool(wrong)


def tied(x: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor | None:
    """Return where two results, as places along the last axis, name equal elements; None where they are no places."""
    if a.dim() == x.dim() - 1:
        found = tied(x, a.unsqueeze(-1), b.unsqueeze(-1))
        return None if found is None else found.squeeze(-1)
    if a.shape[:-1] != x.shape[:-1] or a.min() < 0 or a.max() >= x.shape[-1]:
        return None
    return x.gather(-1, a) == x.gather(-1, b)


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


def table(rows: str) -> None:
    """Print rows as Markdown."""
    print("| kernel | ours, us | PyTorch, us | times as fast | numbers: two sizes, or what failed |")
    print("|---|--:|--:|--:|---|")
    for line in rows.splitlines():
        name, told = line[:24].strip(), line[25:]
        found = re.match(r"ours +([\d.]+) us, PyTorch +([\d.]+) us, +([\d.]+) times; (.*)", told)
        if name in CASES:
            cells = found.groups() if found else ("", "", "", told)
            print(f"| {name} | {' | '.join(cells)} |")


if __name__ == "__main__" and sys.argv[1:2] == ["table"]:
    table(Path(sys.argv[2]).read_text())
elif __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "cpu", sys.argv[2:])
