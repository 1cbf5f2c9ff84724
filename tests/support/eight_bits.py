"""Problems whose tensors have eight bits: what the offline writer makes of them on both sides, beside PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from emulated_cuda import build_emulated

from rag_kernels.eval.records import FunctionalProblem, Problem
from rag_kernels.ingest.functional.functionalize_child import functionalize_here
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from support import generated_kernels as numbers
from support.generated_kernels import Case, tensors_of

Call = Callable[..., list[torch.Tensor]]
SMALL = replace(numbers.SMALL, products=2)

# The module of a case of sixteen bits, of which the tensors that it gets and returns have eight.
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        {init}

    def wide(self, x, y):
        {body}

    def forward(self, x, y):
        found = self.wide({given})
        found = found if isinstance(found, tuple) else (found,)
        return tuple(v.to(torch.{dtype}) if v.is_floating_point() else v for v in found)


def get_inputs():
    return [{x}, {y}]


def get_init_inputs():
    return []
"""


def narrowed(name: str, case: Case, dtype: str) -> FunctionalProblem:
    """The case with tensors of eight bits around it."""

    def lines(text: str) -> str:
        return "\n        ".join(part.strip() for part in text.split(";"))

    inputs = {"x": case.x, "y": case.y}
    texts = {n: t if "randint" in t else f"({t}).to(torch.{dtype})" for n, t in inputs.items()}
    given = ", ".join(n if "randint" in t else f"{n}.float()" for n, t in inputs.items())
    source = MODEL.format(init=lines(case.init), body=lines(case.body), given=given, dtype=dtype, **texts)
    found = functionalize_here({"problem": Problem(name, source), "threads": 2})
    assert isinstance(found, FunctionalProblem), found
    return found


def both(fp: FunctionalProblem, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Call]]:
    """The texts that the writer makes for a CPU and for a GPU, and what calls them here."""
    made = []
    for parameters, folder_of in ((CpuParameters(products=2), "cpu"), (SMALL, "cuda")):
        (folder / folder_of).mkdir(parents=True)
        plan = write(fp, parameters)
        assert plan is not None and plan.candidate.tier == "kernel", folder_of
        if folder_of == "cuda":
            monkeypatch.setattr(numbers, "build", build_emulated)
        made.append((plan.candidate.source, numbers.caller(plan, fp, folder / folder_of)))
    return made


def results(fp: FunctionalProblem, call: Call) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """What a kernel returns, each beside PyTorch's."""
    scope: dict[str, Any] = {}
    exec(fp.problem.source, scope)
    torch.manual_seed(7)
    model, inputs = scope["Model"](), scope["get_inputs"]()
    ours, theirs = call(*tensors_of(fp, model, inputs)), model(*inputs)
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    return [(mine, other.detach()) for mine, other in zip(ours, theirs, strict=True)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are alike bit by bit; of wider floats any NaN is like another."""
    if a.dtype.itemsize == 1 or not a.dtype.is_floating_point:
        return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
    return a.dtype == b.dtype and torch.equal(a.nan_to_num(nan=12345.0), b.nan_to_num(nan=12345.0))


def off_by_steps(a: torch.Tensor, b: torch.Tensor) -> float:
    """The share of elements that are not PyTorch's; none may be more than one step away."""
    assert a.dtype == b.dtype and a.shape == b.shape
    if a.dtype.itemsize > 1 or not a.dtype.is_floating_point:
        return float((a != b).float().mean())
    places = [torch.where(t < 128, t, 128 - t) for t in (v.contiguous().view(torch.uint8).int() for v in (a, b))]
    away = (places[0] - places[1]).abs()
    assert int(away.max()) <= 1
    return float((away > 0).float().mean())
