"""Gathers and embeddings: a stored dimension is read where the indices say, and never outside of it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from emulated_cuda import build_emulated
from support import generated_kernels as numbers
from support.generated_kernels import Case, functional, tensors_of, worst_ratio

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.compose import write
from rag_kernels.offline.cpp.region import CpuParameters
from rag_kernels.offline.cuda.function import CudaParameters

LANGUAGES = {"cpp": CpuParameters(), "cuda": CudaParameters(threads=64, long_threads=128, team=4, sharing=0)}
CASES = {
    "a part of a table": Case(
        "return F.embedding(y, x[3:11]), F.embedding(y, x[::2]), F.embedding(y, x.flip(0)), x[:, 2:].gather(0, y)",
        "torch.randn(16, 9)",
        "torch.randint(0, 7, (5, 4))",
    ),
    "gathers": Case(
        "return x.gather(1, y), x.t().gather(-1, y), (x * 2)[:, ::3].gather(1, y.clamp(max=2))",
        "torch.randn(9, 9)",
        "torch.randint(0, 9, (9, 4))",
    ),
    "an embedding of a sum": Case(
        "return F.embedding(y, x + x.sum()) * 2", "torch.randn(8, 5)", "torch.randint(0, 8, (6,))"
    ),
}
OUTSIDE = {
    "embedding": Case("return F.embedding(y, x)", "torch.randn(7, 5)", "torch.randint(0, 7, (6,))"),
    "gather": Case(
        "return x.gather(0, y.view(6, 1).expand(6, 5)) + 1", "torch.randn(7, 5)", "torch.randint(0, 7, (6,))"
    ),
    "integers": Case("return F.embedding(y, x)", "torch.randint(0, 100, (7, 5))", "torch.randint(0, 7, (6,))"),
    "losses": Case("return F.cross_entropy(x, y, reduction='none')", "torch.randn(6, 7)", "torch.randint(0, 7, (6,))"),
}


@pytest.fixture(params=LANGUAGES)
def called(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[str, Case], tuple[FunctionalProblem, Callable[..., list[torch.Tensor]]]]:
    """Return what writes a case's kernel in this language, and builds it."""
    if request.param == "cuda":
        monkeypatch.setattr(numbers, "build", build_emulated)

    def made(name: str, case: Case) -> tuple[FunctionalProblem, Callable[..., list[torch.Tensor]]]:
        fp = functional(name.replace(" ", "_"), case)
        plan = write(fp, LANGUAGES[request.param])
        assert plan is not None and plan.candidate.tier == "kernel"
        return fp, numbers.caller(plan, fp, tmp_path)

    return made


@pytest.mark.parametrize("name", CASES)
def test_indices_into_a_part_of_a_tensor(name: str, called: Callable[[str, Case], tuple]) -> None:
    assert worst_ratio(*called(name, CASES[name])) <= numbers.RATIO


@pytest.mark.parametrize("wrong", [-1, 7, 1 << 40, -(1 << 62)])
@pytest.mark.parametrize("name", OUTSIDE)
def test_an_index_out_of_range_reads_nothing_and_shows(
    name: str, wrong: int, called: Callable[[str, Case], tuple]
) -> None:
    fp, call = called(name, OUTSIDE[name])
    scope: dict = {}
    exec(fp.problem.source, scope)
    model, inputs = scope["Model"](), scope["get_inputs"]()
    [right] = call(*tensors_of(fp, model, inputs))
    inputs[1][2] = wrong
    [found] = call(*tensors_of(fp, model, inputs))
    kept = [i for i in range(6) if i != 2]
    assert torch.equal(found[kept], right[kept])
    lowest = found[2] == torch.iinfo(torch.int64).min if name == "integers" else found[2].isnan()
    assert lowest.all()
