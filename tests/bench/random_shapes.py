"""Call exported kernels with shapes, strides and dtypes at random, and count wrong numbers.

    python tests/bench/random_shapes.py [CALLS] [NAME...] [--device cuda] [--jobs 8]

Each problem's first draft of the offline writer is exported as a module whose contract leaves every size free, wider
than a judge would say: what is not served is left to the kernel's own checks. A call may be served or fall back to
PyTorch; a result that is not the module's is a fault and named with its shapes.
"""

from __future__ import annotations

import argparse
import importlib.util
import multiprocessing
import os
import random
import re
import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from offline_kernelbench import attempt

from rag_kernels.eval.contract import contract
from rag_kernels.eval.records import FunctionalProblem, Problem
from rag_kernels.export.packages import write_package
from rag_kernels.export.runtime import CompiledForward
from rag_kernels.ingest.functional.functionalize_child import functionalize_here
from rag_kernels.offline.writer import OfflineWriter
from rag_kernels.records import Brief
from rag_kernels.scripted import ScriptedJudge, device, passed

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.generated_kernels import MODEL

ROWS = ("torch.randn({a}, {b})", "torch.randn({b})")
PLANES = ("torch.randn({a}, {c}, {b})", "torch.randn({b})")
PLACES = ("torch.randn({a}, {b})", "torch.randint(0, {a}, ({a}, {b}))")
SORTED = ("torch.randn({a}, {b})", "torch.randn({c}).sort()[0]")
IMAGES = ("torch.randn({a}, 2, {b}, {b})", "torch.rand({a}, {c}, {c}, 2) * 2 - 1")

PROBLEMS: dict[str, tuple[str, tuple[str, str]]] = {
    "pointwise": ("return F.gelu(x) * y + 1", ROWS),
    "broadcast": ("return x[:, None] * y + x.mean()", ROWS),
    "softmax": ("return torch.softmax(x, -1) * y", ROWS),
    "softmax_columns": ("return torch.softmax(x, 0) + y", ROWS),
    "layer_norm": ("return F.layer_norm(x, x.shape[-1:]) * y", PLANES),
    "variance": ("return x.var(-1), x.std(0) * y", ROWS),
    "extremes": ("return *x.max(1), x.argmin(0), x.amax()", ROWS),
    "product": ("return x @ x.t() + 1", ROWS),
    "slices": ("return x[:, 1:] - x[:, :-1], x.flip(0), x[..., -1]", ROWS),
    "concatenation": ("return torch.cat([x, x * y], 1)", ROWS),
    "cumsum": ("return x.cumsum(-1), x.cumsum(0)", ROWS),
    "running_extremes": ("return *x.cummax(-1), y * 2", ROWS),
    "sort": ("return *torch.sort(x, 1), torch.sort(x, 0)[0]", ROWS),
    "topk": ("return torch.topk(x, 3, 1)[0], x.kthvalue(2, 1)[0]", ROWS),
    "median": ("return *x.median(1), x.quantile(0.25, 1)", ROWS),
    "scatter_add": ("return torch.zeros_like(x).scatter_add(0, y, x)", PLACES),
    "index_add": ("return torch.zeros_like(x).index_add(0, y[:, 0], x)", PLACES),
    "scatter_reduce": ("return x.scatter_reduce(0, y, x, 'amax')", PLACES),
    "gather": ("return x.gather(0, y), F.embedding(y[0], x)", PLACES),
    "searchsorted": ("return torch.searchsorted(y, x), torch.bucketize(x, y, right=True)", SORTED),
    "grid_sample": ("return F.grid_sample(x, y, align_corners=False)", IMAGES),
    "fold": ("return F.fold(F.unfold(x, 3, padding=1), x.shape[-2:], 3, padding=1)", IMAGES),
    "spectrum": ("return (torch.fft.fft(x).real * 2).tanh() * y", ROWS),
    "flattened_spectrum": ("return torch.fft.fft(x.flatten(1)).real.reshape(x.shape).softmax(1) * y", PLANES),
    "merged_batch": ("return torch.fft.fft(x).real.flatten(0, 1).unflatten(0, x.shape[:2]).cumsum(1) - y", PLANES),
    "kronecker": ("return torch.kron(x[:, :2], x[:2] * 2).exp()", ROWS),
    "outer_spectrum": ("return torch.fft.fft(x.t() @ x).real * torch.eye(x.shape[1], device=x.device)", ROWS),
}


AT = {"a": 72, "b": 80, "c": 66}  # loops of up to 64 would be numbers in the source
LARGER = tuple({name: factor * n + n // 2 for name, n in AT.items()} for factor in (1, 2))
RAN: list[str] = []  # a mark for each call that a kernel computed
KINDS = ("served", "refused", "fell back", "checked")
HEADS = ("problem", "calls", "served", "PyTorch refuses", "fell back", "refused by the kernel", "wrong")


def text_at(text: str, sizes: dict[str, int]) -> str:
    """Return a problem's text with other sizes of its inputs."""
    head, between, inputs = text.partition("def get_inputs")
    known = {str(AT[name]): str(size) for name, size in sizes.items()}
    return head + between + re.sub(r"\d+", lambda number: known.get(number[0], number[0]), inputs)


def form_of(name: str, text: str) -> FunctionalProblem:
    found = functionalize_here({"problem": Problem(name, text), "threads": 1})
    assert isinstance(found, FunctionalProblem), found
    return found


def counting(run: Any) -> Any:
    """Return the runner of exported kernels that notes each call which a kernel computed."""

    def counted(self: Any, values: Any, outputs: Any) -> Any:
        found = run(self, values, outputs)
        RAN.append("")
        return found

    return counted


CompiledForward.run = counting(CompiledForward.run)  # type: ignore[method-assign]


def sizes(draw: random.Random) -> dict[str, int]:
    """Return sizes, small ones more often."""
    return {name: draw.choice([1, 2, 3, 4, 5, 7, 8, 16, 17, 31, 33, 64, 100, 129]) for name in "abc"}


def exported(name: str, folder: Path, backend: Any) -> tuple[Any, torch.nn.Module]:
    """Return a problem's exported module and the module itself."""
    body, (x, y) = PROBLEMS[name]
    path = folder / f"{name}.py"
    path.write_text(MODEL.format(init="pass", body=body, x=x.format(**AT), y=y.format(**AT)))
    fp, *others = (form_of(name, text_at(path.read_text(), sizes)) for sizes in (AT, *LARGER))
    verdict = replace(passed(2.0), contract=contract(fp, others, any_alignment=False))
    place = device(backend)
    (draft,) = OfflineWriter().propose(Brief("bench", fp, place, (), (), "", 1, 1))
    best = attempt(fp, draft, ScriptedJudge(on=place).judged_as(verdict), 1, 1)
    out = write_package(best, "module", folder / f"{name}_kernel.py")
    return loaded(out).ModelNew(), loaded(path).Model()


def loaded(path: Path) -> Any:
    """Import a file."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def strided(tensor: torch.Tensor, draw: random.Random) -> torch.Tensor:
    """Return the tensor's numbers in another order of memory, now and then."""
    how = draw.random()
    if how < 0.7 or tensor.dim() < 1:
        return tensor
    if how < 0.85 and tensor.dim() > 1:
        return tensor.transpose(0, -1).contiguous().transpose(0, -1)
    return torch.stack([tensor, tensor], -1)[..., 0]


def trial(name: str, modules: tuple[Any, torch.nn.Module], draw: random.Random, backend: str) -> str:
    """Return what came of one call: served, refused (by PyTorch), fell back, checked (by the kernel), or WRONG."""
    at, (x, y) = sizes(draw), PROBLEMS[name][1]
    torch.manual_seed(draw.randrange(1 << 30))
    inputs = [eval(text.format(**at), {"torch": torch}) for text in (x, y)]
    dtype = draw.choice([None] * 8 + [torch.float64, torch.bfloat16])
    inputs = [(t.to(dtype) if dtype and t.is_floating_point() else t).to(backend) for t in inputs]
    inputs = [strided(t, draw) for t in inputs]
    ours, theirs = modules
    try:
        wanted = theirs(*inputs)
    except (RuntimeError, IndexError):
        return "refused"
    ran = len(RAN)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        got = ours(*inputs)
    pairs = zip(*(v if isinstance(v, tuple) else (v,) for v in (got, wanted)), strict=True)
    right = all(
        a.shape == b.shape
        and a.dtype == b.dtype
        and torch.allclose(a, b, rtol=tolerance(b), atol=tolerance(b), equal_nan=True)
        for a, b in pairs
    )
    if not right:
        given = [(tuple(t.shape), str(t.dtype), t.stride()) for t in inputs]
        return f"WRONG at {given}"
    if len(RAN) > ran:
        return "served"
    return "checked" if ours.kernel_reason.startswith("The kernel itself") else "fell back"


def tolerance(wanted: torch.Tensor) -> float:
    return {torch.bfloat16: 5e-2, torch.float64: 1e-4}.get(wanted.dtype, 1e-4)


@dataclass(frozen=True)
class Row:
    """What came of the calls of one problem."""

    name: str
    told: tuple[str, ...] = ()
    fault: str = ""

    @property
    def wrong(self) -> list[str]:
        return [text for text in self.told if text.startswith("WRONG")]

    @property
    def counts(self) -> tuple[int, ...]:
        return len(self.told), *(self.told.count(kind) for kind in KINDS), len(self.wrong)


def called(name: str, *, calls: int, backend: str) -> Row:
    """Return what becomes of so many calls of a problem's exported kernel."""
    warnings.simplefilter("ignore")  # of variances of one number
    torch.set_num_threads(2)
    draw = random.Random(name)
    try:
        modules = exported(name, Path(tempfile.mkdtemp()), backend)
    except Exception as error:
        return Row(name, fault=f"{type(error).__name__}: {str(error)[:200]}")
    return Row(name, tuple(trial(name, modules, draw, backend) for _ in range(calls)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("calls", nargs="?", type=int, default=10_000)
    parser.add_argument("names", nargs="*", help="problems; all without any")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="problems at once")
    asked = parser.parse_args()
    chosen = asked.names or list(PROBLEMS)
    work = partial(called, calls=-(-asked.calls // len(chosen)), backend=asked.device)
    print(f"| {' | '.join(HEADS)} |", f"|---|{'---:|' * (len(HEADS) - 1)}", sep="\n")
    rows = []
    with ProcessPoolExecutor(asked.jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        for row in pool.map(work, chosen):
            rows.append(row)
            print(f"| {row.name} | {row.fault or ' | '.join(map(str, row.counts))} |", flush=True)
            for text in row.wrong[:3]:
                print(f"    {text}", flush=True)
    calls, served, *_, wrong = map(sum, zip(*(row.counts for row in rows), strict=True))
    where = torch.cuda.get_device_name() if asked.device == "cuda" else f"{os.cpu_count()} threads of a CPU"
    print(f"\n{where}, PyTorch {torch.__version__}: {calls} calls, {served} served by kernels, {wrong} wrong.")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
