"""Results that move by a step where rounding decides: what is excused there, and what is not."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from judging import verdict
from support.kept import kept_judge

from rag_kernels.eval.judge import LocalJudge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.numerics.rounding_noise import RoundingNoise
from rag_kernels.eval.numerics.steps import Choice, as_good, excused
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.eval.verdict_codes import codes
from rag_kernels.eval.zoo.exploits.third_round import SPECIMENS
from rag_kernels.eval.zoo.tasks import TASKS
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

GEN = torch.Generator().manual_seed(0)
QUICK = Limits(measure_compile=False, timing=TimingRule(pairs=7, max_pairs=7, timed_s=0.01, max_timed_s=0.5))


@pytest.fixture(scope="module")
def judge() -> Iterator[LocalJudge]:
    with kept_judge("cpu", limits=QUICK, at_other_sizes=at_other_sizes) as kept:
        yield kept


def floors(x: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return torch.floor(x / s)


def test_a_step_is_excused_where_something_was_rounded_before_it_alone() -> None:
    x, s = torch.rand(4, 512, generator=GEN) * 30, torch.rand(4, 1, generator=GEN) + 0.5
    x[:, 7] = (3 * s * (1 - 2**-23))[:, 0]  # quotients next to 3, which are rounded
    x[0, 5], s[0] = 6.0, 2.0  # one that is exact
    reference, oracle = floors(x, s), floors(x.double(), s.double())

    def again() -> Iterator[torch.Tensor]:
        for _ in range(16):
            with RoundingNoise(GEN, exact_stays=True):
                moved = floors(x, s)
            yield moved

    got = reference.clone()
    got[2, 7] = 5 - got[2, 7]  # 2 where it was 3, or the other way round
    put_right = excused(got, reference, oracle, again())
    assert put_right is not None and torch.equal(put_right[2], oracle[2].float())
    got[0, 5] = 2.0
    assert excused(got, reference, oracle, again()) is None
    got = reference.clone()
    got[1, 7] = 9.0  # by more than a step
    assert excused(got, reference, oracle, again()) is None


def test_an_index_is_as_good_as_its_value() -> None:
    values = torch.tensor([[0.5, 0.25, 0.2500001, 0.1]], dtype=torch.float64)
    own = Choice(values.to(torch.bfloat16), 1)
    wide, right = Choice(values, 1), torch.tensor([[0, 2]])
    for got, good in (([0, 1], True), ([0, 3], False), ([0, 0], False), ([1, 2], False), ([0, 4], False)):
        assert as_good(torch.tensor([got]), right, wide, own, exact=False) is good, got
    assert not as_good(torch.tensor([[0, 1]]), right, wide, own, exact=True)


@pytest.mark.parametrize("name", ["routed", "whole quotients", "softplus", "attention"])
def test_strangers_faults_are_told_and_their_twins_are_right(judge: LocalJudge, name: str) -> None:
    specimen = next(s for s in SPECIMENS if s.task == name)
    fp = functionalize(problem_from_source(name.replace(" ", "_"), TASKS[name].problem), workers=judge.workers)
    honest = codes(verdict(judge, fp, specimen.honest.source))
    assert "passed" in honest and not any(c.startswith(("label:fragile", "label:precision ")) for c in honest), honest
    found = verdict(judge, fp, specimen.candidates()[0].source)
    assert codes(found) & set(specimen.expect), found
