"""pass@k, fast_p and fast_p@k: against values by hand, from an archive, and as a picture."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest
from factories import attempt, candidate, linear_problem, llm_call, passed, problem, run, wrong

from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.eval.records import ProblemError
from rag_kernels.experiments.scores import Score, Solved, at_least_one, runs_of, scores, solved
from rag_kernels.report.plots import draw

RELU = problem()


def row(samples: int, *speedups: float) -> Solved:
    return Solved("p", "p", samples, len(speedups), speedups, max(speedups, default=None), False, samples, 0.0)


def found(told: list[Score], metric: str, p: float | None, k: int | None) -> Score:
    return next(s for s in told if (s.metric, s.p, s.k) == (metric, p, k))


@pytest.mark.parametrize(("samples", "good", "k"), [(5, 2, 1), (5, 2, 3), (4, 4, 2), (4, 0, 4), (6, 1, 6)])
def test_the_chance_of_a_good_sample_is_that_of_all_draws(samples: int, good: int, k: int) -> None:
    draws = list(combinations([True] * good + [False] * (samples - good), k))
    assert at_least_one(samples, good, k) == pytest.approx(sum(map(any, draws)) / len(draws))


def test_scores_of_problems() -> None:
    told = scores([row(4, 0.5, 2.5), row(2), row(4, 1.2)])
    assert found(told, "fast_p", 0.0, None).interval.mean == pytest.approx(2 / 3)
    assert found(told, "fast_p", 2.0, None).interval.mean == pytest.approx(1 / 3)
    assert found(told, "pass@k", None, 1).interval.mean == pytest.approx((0.5 + 0 + 0.25) / 3)
    four = found(told, "pass@k", None, 4)
    assert (four.problems, four.interval.mean) == (2, 1.0)
    assert found(told, "fast_p@k", 1.0, 2).interval.mean == pytest.approx((0.5 + 0 + 0.5) / 3)
    one = found(told, "fast_p", 1.0, None).interval
    assert one.low < one.mean < one.high


def test_a_run_is_scored_by_last_judgements_and_first_rounds() -> None:
    archive = MemoryArchive()
    archive.start_run(run("r1"))
    fast, slow, bad = (candidate(RELU, variant=n) for n in range(3))
    entries = [
        (fast, passed(3.0, confirmed=False), 1),
        (slow, passed(0.5, confirmed=False), 1),
        (bad, wrong(), 1),
        (candidate(RELU, variant=3), passed(4.0, confirmed=False), 2),
        (fast, wrong(), 1),
    ]
    for number, (one, verdict, round_) in enumerate(entries, start=1):
        made = attempt("r1", number, RELU, candidate=one, verdict=verdict, round=round_)
        archive.record_attempt(made, retract="it failed again" if number == 5 else "")
    archive.record_call(llm_call("r1"))
    [only] = solved(archive, runs_of(archive, ["r1"]))
    assert (only.samples, only.right, only.speedups, only.best, only.candidates) == (3, 1, (0.38,), 3.04, 4)
    with pytest.raises(ProblemError, match="no run 'r2'"):
        runs_of(archive, ["r2"])


def test_problems_of_a_growth_belong_together() -> None:
    archive = MemoryArchive()
    for name, one in (("r1", RELU), ("r2", linear_problem())):
        archive.start_run(run(name, command="grow", settings='{"growth": "w_1"}'))
        archive.record_attempt(attempt(name, 1, one))
    archive.start_run(run("r3"))
    assert {r.id for r in runs_of(archive, ["w_1"])} == {"r1", "r2"}
    assert len(solved(archive, runs_of(archive, ["w_1"]))) == 2


def test_a_picture(tmp_path: Path) -> None:
    draw(scores([row(4, 0.5, 2.5), row(4), row(4, 1.2)]), "three problems", tmp_path / "r.svg")
    text = (tmp_path / "r.svg").read_text()
    assert text.startswith("<svg") and "three problems" in text and "fast_2@k" in text
