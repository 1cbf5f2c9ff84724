"""Records of judged drafts, and which of them is ahead: what runs, queues and reports agree on.

Comes in: a judged draft, or the attempts of a run. Goes out: an `Attempt`, or the attempts in order of merit. Knows
nothing of how kernels are written, judged or shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rag_kernels.archive.records import Attempt, Edge, Run
from rag_kernels.eval.records import FunctionalProblem, Judged, Passed
from rag_kernels.eval.told import told_speedup
from rag_kernels.records import Draft
from rag_kernels.run.history import History


def as_attempt(
    history: History, run: Run, problem: FunctionalProblem, draft: Draft, judged: Judged, writer: str, number: int
) -> Attempt:
    """Return the record of a judged draft of round `number`; exemplars and declared parents become its lineage."""
    child = draft.candidate.id
    edges = {source: Edge(child, source, relation) for source, relation in draft.parents if source != child}
    for exemplar in draft.exemplars:
        if exemplar.kernel_id != child:
            edges.setdefault(exemplar.kernel_id, Edge(child, exemplar.kernel_id, "retrieved"))
    return Attempt(
        run_id=run.id,
        number=len(history.attempts) + 1,
        round=number,
        problem=problem,
        candidate=draft.candidate,
        judged=judged,
        writer=writer,
        model=draft.model,
        idea=draft.idea,
        exemplars=draft.exemplars,
        parents=tuple(edges.values()),
        call_ids=draft.call_ids,
        cost_usd=draft.cost_usd,
        seconds=history.lap(),
        created_at=now(),
        note=draft.note,
        techniques=draft.techniques,
    )


def standing(attempts: Sequence[Attempt]) -> list[Attempt]:
    """Return the latest attempt of each candidate whose latest verdict is a pass."""
    latest = {a.candidate.id: a for a in attempts}
    return [a for a in latest.values() if isinstance(a.judged.verdict, Passed)]


def winner(attempts: Sequence[Attempt]) -> Attempt | None:
    """Return the attempt to report (confirmed first, then by `merit`), or None where nothing passed."""
    return max(standing(attempts), key=lambda a: (is_confirmed(a), *merit(a)), default=None)


def merit(attempt: Attempt) -> tuple[bool, bool, float]:
    """Return a sort key: may it claim a speed, is it as exact as its baselines, its speed-up over them."""
    verdict = attempt.judged.verdict
    if not isinstance(verdict, Passed):
        return (False, False, 0.0)
    return (verdict.claims_speed, verdict.like_with_like, told_speedup(verdict.measurement))


def is_ahead(one: Attempt, other: Attempt) -> bool:
    """Return whether a passed attempt is better than another by more than the intervals of both."""
    mine, theirs = one.judged.verdict, other.judged.verdict
    if not isinstance(mine, Passed) or not isinstance(theirs, Passed) or merit(one)[:2] != merit(other)[:2]:
        return merit(one) > merit(other)
    return mine.measurement.over_better.low > theirs.measurement.over_better.high


def is_confirmed(attempt: Attempt) -> bool:
    """Return whether an attempt passed again in a fresh process."""
    verdict = attempt.judged.verdict
    return isinstance(verdict, Passed) and verdict.measurement.confirmed


def now() -> str:
    """Return the time in UTC, ISO 8601, in milliseconds, so that one run begins after another."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
