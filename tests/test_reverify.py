"""Judging archived kernels again: what holds, what is stale, and what that means for everyone who asks."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import factories as f
import pytest

from rag_kernels.archive import queries
from rag_kernels.archive.audit import verify
from rag_kernels.archive.duck import DuckArchive
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.recheck import due
from rag_kernels.archive.records import KernelFilter
from rag_kernels.eval.machine.device import gpu_name
from rag_kernels.eval.records import FunctionalProblem, Judged, MachineError, Problem, ProblemError, Verdict
from rag_kernels.report.json_rows import reverified_row
from rag_kernels.run.reverify import Reverified, require_device, reverify
from rag_kernels.scripted import ScriptedJudge

RELU, TANH = f.problem("relu"), f.problem("tanh")
KNOWN = {p.problem.id: p for p in (RELU, TANH)}
FAST, SLOW, OTHER = f.candidate(RELU), f.candidate(RELU, variant=1), f.candidate(TANH)
ELSEWHERE = f.device(name="Another CPU")
NEW = f.environment(judge_version="2")


class NewJudge(ScriptedJudge):
    """A later version of the judge."""

    def judged_as(self, verdict: Verdict) -> Judged:
        return f.judged(verdict, on=self.device, env=NEW)


@pytest.fixture
def archive() -> DuckArchive:
    """Judged here by version 1: FAST and SLOW. Judged elsewhere: OTHER."""
    made = MemoryArchive()
    made.start_run(f.run())
    made.record_attempt(f.attempt(number=1, p=RELU, candidate=FAST, verdict=f.passed(3.0)))
    made.record_attempt(f.attempt(number=2, p=RELU, candidate=SLOW, verdict=f.passed(1.5)))
    elsewhere = f.judged(f.passed(2.0), on=ELSEWHERE)
    made.record_attempt(f.attempt(number=3, p=TANH, candidate=OTHER, judged=elsewhere))
    return made


def functionalize(problem: Problem) -> FunctionalProblem:
    return KNOWN[problem.id]


def again(archive: DuckArchive, judge: ScriptedJudge) -> dict[str, Reverified]:
    left = due(archive, judge.device, "2")
    found: Iterator[Reverified] = reverify(left, archive=archive, judge=judge, functionalize=functionalize)
    return {r.due.candidate.id: r for r in found}


def test_what_holds_is_up_to_date_afterwards(archive: DuckArchive) -> None:
    judge = NewJudge(confirmations={FAST.id: f.passed(2.9), SLOW.id: f.passed(1.5)})
    results = again(archive, judge)
    assert {r.state for r in results.values()} == {"holds"} and set(results) == {FAST.id, SLOW.id, OTHER.id}
    assert due(archive, judge.device, "2") == []
    assert len(due(archive, judge.device, "2", everything=True)) == 3
    assert [d.candidate.id for d in due(archive, judge.device, "3", kernel_ids=[SLOW.id])] == [SLOW.id]
    board = queries.leaderboard(archive, RELU.problem.id, f.device().key)
    assert [(p.kernel_id, p.speedup) for p in board] == [(FAST.id, pytest.approx(2.32)), (SLOW.id, pytest.approx(1.2))]
    assert len(queries.evaluations(archive, OTHER.id)) == 3
    assert archive.runs()[0].status == "finished"
    assert verify(archive) == []


def test_what_fails_or_is_slower_is_stale_and_wins_nothing(archive: DuckArchive) -> None:
    judge = NewJudge({FAST.id: f.wrong()}, {SLOW.id: f.passed(1.1), OTHER.id: f.crashed()})
    results = again(archive, judge)
    assert {k: r.state for k, r in results.items()} == {FAST.id: "stale", SLOW.id: "stale", OTHER.id: "fails here"}
    assert reverified_row(results[FAST.id])["reason"] == "judged again: wrong, output 0 differs from the fp64 oracle"
    assert reverified_row(results[SLOW.id])["reason"] == "judged again: 0.88x where it was 1.20x"
    assert [(p.kernel_id, p.speedup) for p in queries.leaderboard(archive, RELU.problem.id)] == [
        (SLOW.id, pytest.approx(0.88))
    ]
    with archive.database.read() as con:
        best = con.execute("SELECT kernel_id FROM best_per_graph_key WHERE graph_key = ?", [RELU.graph_key]).fetchall()
    assert best == [(SLOW.id,)]
    assert [p.kernel_id for p in queries.leaderboard(archive, TANH.problem.id)] == [OTHER.id]
    assert FAST.id not in {k.id for k in archive.kernels(KernelFilter())}
    kernel = archive.kernel(FAST.id)
    assert kernel is not None and kernel.stale.startswith("judged again: wrong") and kernel.trust == "confirmed"
    assert due(archive, judge.device, "2") == []
    assert verify(archive) == []


def test_a_stale_kernel_that_passes_later_stands_again(archive: DuckArchive) -> None:
    again(archive, NewJudge({FAST.id: f.timed_out()}))
    left = due(archive, f.device(), "2", kernel_ids=[FAST.id], everything=True)
    [result] = reverify(left, archive=archive, judge=NewJudge(), functionalize=functionalize)
    assert result.mark is not None and result.mark.outcome == "slower"  # the first 3x does not come back
    kernel = archive.kernel(FAST.id)
    assert kernel is not None and (kernel.stale, kernel.speedup_eager) == ("", 2.0)


def test_a_mere_claim_is_refuted_by_a_failure_here(archive: DuckArchive) -> None:
    with archive.database.write() as con:
        con.execute("UPDATE evaluations SET trust = 'claimed' WHERE kernel_id = ?", [OTHER.id])
    assert again(archive, NewJudge({OTHER.id: f.build_failed()}))[OTHER.id].state == "stale"
    assert OTHER.id not in {k.id for k in archive.kernels(KernelFilter())}


def test_retracted_kernels_are_left_alone_and_a_kill_between_both_judgements_is_made_good(archive: DuckArchive) -> None:
    archive.retract(SLOW.id, "for the test")
    first = f.judged(f.passed(3.0, confirmed=False), env=NEW)
    archive.record_attempt(f.attempt(number=9, p=RELU, candidate=FAST, judged=first))
    assert [d.candidate.id for d in due(archive, f.device(), "2")] == [FAST.id, OTHER.id]


def test_what_cannot_be_judged_here_is_said_and_marks_nothing(archive: DuckArchive) -> None:
    def refuse(problem: Problem) -> FunctionalProblem:
        if problem.id == TANH.problem.id:
            raise ProblemError("it needs einops")
        return dataclasses.replace(RELU, problem=Problem("smaller", "smaller"), notice="batch 1 instead of 64")

    left = due(archive, f.device(), "2")
    results = list(reverify(left, archive=archive, judge=NewJudge(), functionalize=refuse))
    assert [r.state for r in results] == ["not judged"] * 3
    assert "batch 1 instead of 64" in results[0].why_not and results[2].why_not == "it needs einops"
    assert len(due(archive, f.device(), "2")) == 3


@pytest.mark.skipif(gpu_name() is not None, reason="there is a GPU")
def test_without_a_gpu_cuda_kernels_are_not_judged_again() -> None:
    require_device("cpu")
    with pytest.raises(MachineError, match="no NVIDIA GPU"):
        require_device("cuda")
