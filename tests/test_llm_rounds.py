"""The table of rounds: what each kind of turn won follows from attempts, their notes and their parents."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path
from typing import Any

import factories
import pytest

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import Verdict
from rag_kernels.long_runs.sampling import Sampled, Verdicts
from rag_kernels.options import Options
from rag_kernels.records import Brief, Draft
from rag_kernels.run.journal import Told
from rag_kernels.run.session import new_run

BENCH = Path(__file__).parent / "bench" / "llm_ablation"


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(BENCH))
    return importlib.import_module("llm_rounds")


def right(speedup: float) -> Verdict:
    return factories.passed(speedup / 0.8)  # torch.compile is the better baseline


def attempt(number: int, at: int, verdict: Verdict, note: str = "new idea", *parents: Attempt) -> Attempt:
    made_from = tuple(p.candidate.id for p in parents)
    return factories.attempt(number=number, variant=number, verdict=verdict, parents=made_from, note=note, round=at)


def test_each_turn_is_held_against_its_parents_and_the_best_before(rounds: Any) -> None:
    problem = factories.problem()
    first = attempt(1, 1, right(0.8))
    broken = attempt(2, 1, factories.crashed())
    repaired = attempt(3, 2, right(1.5), "repairs attempt 2", broken)
    barred = attempt(4, 2, replace(factories.passed(9.0), labels=("suspicious: too fast",)))
    crossed = attempt(5, 3, right(1.2), "combines attempts 1 and 3", first, repaired)
    run = new_run(Options(), "sample", problem.problem)
    brief = Brief("r", problem, factories.device(), (), (), "", 1, 1)
    sampled = Sampled(run, (Told(1, brief, ()),), (), ())
    found = list(rounds.turns(Verdicts(sampled, (first, broken, repaired, barred, crossed))))
    assert [turn.kind for turn in found] == ["first draft", "first draft", "repair", "explore", "recombine"]
    assert [turn.before for turn in found] == pytest.approx([1.0, 1.0, 1.0, 1.0, 1.5])
    assert [turn.of_parents for turn in found] == [None, None, None, None, pytest.approx(1.5)]
    assert found[3].speedup is None and found[1].said == "crashed"
    other = replace(factories.device("cuda"), name="NVIDIA H200")
    elsewhere = replace(crossed, judged=replace(crossed.judged, device=other))
    *_, apart = rounds.turns(Verdicts(sampled, (first, broken, repaired, barred, elsewhere)))
    assert (apart.card, apart.of_parents, apart.before) == ("H200", None, 1.0)  # two cards are not held together
    [row, means] = rounds.by_round({"relu": [*found[:4], apart]}, {"relu": rounds.Counter()})[2:]
    assert row.endswith("| 1.20 |") and "| 1.000 | 1.000 | 1.200 |" in means  # and the best is one of the last card
    lines = rounds.by_kind(found)
    assert "| repair | 1 | 1 |  |  | 1.50 | 1 | 1 |" in lines
    assert "| recombine | 1 | 1 | 0 of 1 | 0.80 | 0.80 | 0 | 1 |" in lines
    draft = Draft(factories.candidate(problem, variant=9), "not judged")
    asked = replace(sampled, told=(*sampled.told, Told(2, replace(brief, round=3), (draft,))))
    left = rounds.not_judged(Verdicts(asked, (first, broken, repaired, barred, crossed)))
    [row, means] = rounds.by_round({"relu": found}, {"relu": left})[2:]
    assert row.endswith("| recombine 1.20 (100 us); 1 not judged | 1.50 |") and "| 1.000 | 1.500 | 1.500 |" in means
