"""Every schedule times the dtypes that other tests leave out, in emulated CUDA, against PyTorch: exactly.

Floats of 32 and 16 bits run through more texts in `test_offline_cuda.py` and `test_offline_half.py`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import SMALL, Case, functional, tensors_of

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.compose import write
from rag_kernels.offline.cuda import region

DTYPES = ("float64", "int64", "int32", "int16", "int8", "uint8", "bool")

ALL = (
    "torch.where(x > 1, x, y), x.amax(-1), x.sum(-1), x == x.amin(-1, True), x.amin(0), x.sum(0), x.cumsum(-1), "
    "torch.stack([x, x], -1)"
)
# What must stand in the text of every dtype, what is computed, and shapes of `x` and `y` that one build serves: the
# first ones are taken by vectors.
CASES = {
    "rows and columns": (
        ("_wide", "forward_0<<<", "row_reduce(", "column_reduce(", "row_scan("),
        ALL,
        [("(130, 208)", "(208,)"), ("(131, 201)", "(201,)")],
    ),
    "running columns": (("forward_0<<<",), "x.cumsum(0) * y, x == y", [("(70, 24)", "(24,)")]),
    "parts": (("scratch<", "row_reduce(", "of_earlier<"), "x.sum(), x.amax(), x.cumsum(0)", [("(65536,)", "(65536,)")]),
}


def made(shape: str, dtype: str) -> str:
    """Small whole numbers: above zero in one row and below in the next, where the dtype has a sign."""
    if dtype in {"bool", "uint8"}:
        return f"torch.randint(0, {2 if dtype == 'bool' else 4}, {shape}).to(torch.{dtype})"
    signs = f"(1 - torch.arange({shape}[0]) % 2 * 2).view(-1, *[1] * (len({shape}) - 1))"
    return f"(torch.randint(1, 4, {shape}) * {signs}).to(torch.{dtype})"


@pytest.mark.parametrize("dtype", DTYPES)
def test_schedules(dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers so small that their sums are exact in every dtype."""
    monkeypatch.setattr(numbers, "build", functools.cache(build_emulated))
    monkeypatch.setattr(region, "MANY_COLUMNS", 1)
    for name, (texts, body, shapes) in CASES.items():
        folder = tmp_path / name.replace(" ", "_")
        folder.mkdir()
        cases = [Case(f"return {body}", made(x, dtype), made(y, dtype)) for x, y in shapes]
        problems = [functional(f"{folder.name}_{dtype}", case) for case in cases]
        plan = write(problems[0], SMALL)
        assert plan is not None and plan.candidate.tier == "kernel", (name, dtype)
        assert all(text in plan.candidate.source for text in texts), (name, dtype)
        assert [fault for fp in problems for fault in faults(fp, numbers.caller(plan, fp, folder))] == [], name


def faults(fp: FunctionalProblem, call: Callable[..., list[torch.Tensor]]) -> list[str]:
    """The results that are not PyTorch's, bit by bit."""
    scope: dict[str, Any] = {}
    exec(fp.problem.source, scope)
    torch.manual_seed(5)
    model, inputs = scope["Model"](), scope["get_inputs"]()
    ours = call(*tensors_of(fp, model, inputs))
    exact = [v.to(mine.dtype) for v, mine in zip(model(*inputs), ours, strict=True)]
    pairs = enumerate(zip(ours, exact, strict=True))
    return [f"result {i}: {a.flatten()[:4]} for {b.flatten()[:4]}" for i, (a, b) in pairs if not torch.equal(a, b)]


@pytest.mark.parametrize(("dtype", "many"), [("int8", 16), ("uint8", 16), ("bool", 4)])
def test_how_many_bytes_a_thread_takes(dtype: str, many: int) -> None:
    """Sixteen where a load takes them all at once; truth values are loaded one by one."""
    plan = write(functional("bytes", Case("return x | y", made("(4, 64)", dtype), made("(4, 64)", dtype))), SMALL)
    assert plan is not None and f"Pack<{dtype}{'_t' * (dtype != 'bool')}, {many}>" in plan.candidate.source
