"""Kernels of the offline writer for a case, in C++ and in emulated CUDA, called at sizes of the test's choice."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional

LANGUAGES = {"cpp": CpuParameters(), "cuda": CudaParameters(threads=64, long_threads=128, team=4, sharing=0)}
Made = Callable[[str, Case], tuple[FunctionalProblem, Callable[..., list[torch.Tensor]]]]


def maker(language: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Made:
    """Return what writes a case's kernel in a language, and builds it."""
    if language == "cuda":
        monkeypatch.setattr(numbers, "build", build_emulated)

    def build(name: str, case: Case) -> tuple[FunctionalProblem, Callable[..., list[torch.Tensor]]]:
        fp = functional(name, case)
        plan = write(fp, LANGUAGES[language])
        assert plan is not None and not plan.library
        return fp, numbers.caller(plan, fp, folder)

    return build


def compared(
    fp: FunctionalProblem,
    call: Callable[..., list[torch.Tensor]],
    x: torch.Tensor,
    y: torch.Tensor,
    *,
    tolerance: float = 1e-5,
) -> None:
    """Compare a kernel's results with the module's for these inputs, NaN with NaN."""
    scope: dict = {}
    exec(fp.problem.source, scope)
    wanted = scope["Model"]()(x, y)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    outputs = [torch.full_like(w, 99) for w in wanted]
    call_into(call, (x, y), outputs, fp)
    for number, (ours, theirs) in enumerate(zip(outputs, wanted, strict=True)):
        torch.testing.assert_close(
            ours, theirs, rtol=tolerance, atol=tolerance, equal_nan=True, msg=lambda m, n=number: f"{n}: {m}"
        )


def call_into(call: Callable[..., list[torch.Tensor]], inputs: tuple, outputs: list[torch.Tensor], fp: object) -> None:
    """Call a kernel with outputs of other sizes than the problem's."""
    names = call.__closure__
    assert names is not None
    module = next(c.cell_contents for c in names if hasattr(c.cell_contents, "forward"))
    module.forward(*inputs, *(v for _, v in fp.abi_constants), *outputs)  # type: ignore[attr-defined]
