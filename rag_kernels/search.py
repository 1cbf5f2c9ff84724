"""The search: from a problem to judged, archived attempts. Read `generate` first.

Comes in: a problem and the seams (writer, judge, archive, retrieval), handed in as arguments. Goes out: attempts,
each on disk before it is yielded, so that Ctrl-C or a kill loses nothing that was judged. Knows nothing of
terminals, settings, or which writer, judge or archive it drives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from archive.protocol import Archive
from archive.records import Attempt, Edge, Run
from eval.records import (
    Crashed,
    FunctionalProblem,
    Judged,
    Passed,
    Problem,
    ProblemError,
    Rejected,
    Wrong,
)
from rag_kernels.budget import BudgetExhaustedError, Ledger
from rag_kernels.history import History, new_drafts
from rag_kernels.journal import Journal, Told
from rag_kernels.likeness import label_near_copy
from rag_kernels.records import Brief, Draft, Shown, Writer, WriterError

if TYPE_CHECKING:
    from eval.judge import Judge

log = logging.getLogger(__name__)

MAX_CONFIRMATIONS = 3


Functionalize = Callable[[Problem], FunctionalProblem]
Retrieve = Callable[[FunctionalProblem, Sequence[Attempt]], Sequence[Shown]]
Index = Callable[[Attempt], object]


def generate(
    problem: Problem,
    *,
    run: Run,
    functionalize: Functionalize,
    retrieve: Retrieve,
    writer: Writer,
    judge: Judge,
    archive: Archive,
    index: Index,
    ledger: Ledger,
    width: int,
    hint: str = "",
    confirm: bool = True,
) -> Iterator[Attempt]:
    """Write, judge and archive kernels for a problem until the budget or the writer's ideas are spent.

    A run that the archive knows already goes on where it stood: nothing that was judged is judged again, and no reply
    that was paid for is asked for again.
    """
    functional = functionalize(problem)
    require_verifiable(functional)
    archive.start_run(run)
    history = History(archive.attempts(run.id))
    journal = Journal(archive, run.id)
    left, stopped = journal.left(), None
    status = "interrupted"
    try:
        while left or not (stopped := ledger.exhausted()):
            if left:
                told = left.pop(0)
            else:
                ledger.start_round()
                number, shown = ledger.spent().rounds, tuple(retrieve(functional, history.attempts))
                before = tuple(history.attempts)
                told = journal.ask(Brief(run.id, functional, judge.device, shown, before, hint, number, width))
            try:
                told = propose(told, writer, journal)
            except WriterError as error:
                if not (history.attempts or isinstance(error, BudgetExhaustedError)):
                    raise
                stopped = str(error)
                break
            if not told.drafts:
                stopped = f"The {writer.name} writer has nothing more to try."
                break
            drafts, number = history.unjudged(told.drafts), told.brief.round
            log.info("Round %d: %d candidates to build and judge.", number, len(drafts))
            for candidate, verdict in judge.judge(functional, [d.candidate for d in drafts.values()]):
                others = [(s.kernel.id, s.kernel.source) for s in told.brief.exemplars if s.kernel.id != candidate.id]
                judged = label_near_copy(verdict, candidate.source, others)
                attempt = as_attempt(history, run, functional, drafts[candidate.id], judged, writer.name, number)
                archive.record_attempt(attempt)
                index(attempt)
                history.add(attempt)
                yield attempt
                if ledger.seconds_left() == 0:
                    break
        if confirm:
            yield from confirm_best(history, run, functional, judge, archive)
        log.info("%s", stopped)
        status = "finished"
    except Exception:
        status = "failed"
        raise
    finally:
        archive.finish_run(run.id, status)


def propose(told: Told, writer: Writer, journal: Journal) -> Told:
    """The new drafts for a brief, on disk before they are judged; none when the writer has nothing more to try."""
    if told.drafts is not None:
        return told
    return journal.answer(told, new_drafts(writer.propose(told.brief), told.brief))


def require_verifiable(problem: FunctionalProblem) -> None:
    """Raise a ProblemError when no kernel for this problem could be proved right."""
    if problem.uses_random:
        raise ProblemError(
            f"{problem.problem.name} draws random numbers in its forward (dropout?), so no kernel can be checked "
            "against it: set the dropout probability to 0 or remove it."
        )


def as_attempt(
    history: History, run: Run, problem: FunctionalProblem, draft: Draft, judged: Judged, writer: str, number: int
) -> Attempt:
    """The record of a judged draft. What it was shown counts as its lineage, beside its declared parents."""
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
    )


def confirm_best(
    history: History, run: Run, problem: FunctionalProblem, judge: Judge, archive: Archive
) -> Iterator[Attempt]:
    """Judge the fastest passed candidate again in a fresh process, and the next one if it does not hold."""
    for _ in range(MAX_CONFIRMATIONS):
        fastest = max(standing(history.attempts), key=merit, default=None)
        if fastest is None or is_confirmed(fastest):
            return
        judged = _keep_near_copy(judge.confirm(problem, fastest.candidate), fastest.judged)
        draft = Draft(
            fastest.candidate,
            fastest.idea,
            exemplars=fastest.exemplars,
            model=fastest.model,
            note=f"confirmation of attempt {fastest.number}",
        )
        attempt = as_attempt(history, run, problem, draft, judged, fastest.writer, fastest.round)
        why = ""
        if isinstance(judged.verdict, Wrong | Crashed | Rejected):
            why = f"did not pass again in a fresh process: {judged.verdict.reason}"
        archive.record_attempt(attempt, retract=why)
        history.add(attempt)
        yield attempt


def _keep_near_copy(judged: Judged, before: Judged) -> Judged:
    """A confirmation sees no exemplars: what the first judgement said of them still holds."""
    if not isinstance(judged.verdict, Passed) or not isinstance(before.verdict, Passed):
        return judged
    kept = tuple(label for label in before.verdict.labels if label.startswith("near-copy"))
    return replace(judged, verdict=replace(judged.verdict, labels=judged.verdict.labels + kept))


def standing(attempts: Sequence[Attempt]) -> list[Attempt]:
    """The latest attempt of each candidate whose latest verdict is a pass."""
    latest = {a.candidate.id: a for a in attempts}
    return [a for a in latest.values() if isinstance(a.judged.verdict, Passed)]


def winner(attempts: Sequence[Attempt]) -> Attempt | None:
    """The kernel to report: confirmed before unconfirmed, then strict precision, then speed."""
    return max(standing(attempts), key=lambda a: (is_confirmed(a), *merit(a)), default=None)


def merit(attempt: Attempt) -> tuple[bool, bool, float]:
    """How good a passed attempt is: a claim to speed first, then precision, then speed-up over the better baseline."""
    verdict = attempt.judged.verdict
    if not isinstance(verdict, Passed):
        return (False, False, 0.0)
    return (verdict.claims_speed, verdict.precision == "strict", verdict.measurement.speedup)


def is_confirmed(attempt: Attempt) -> bool:
    verdict = attempt.judged.verdict
    return isinstance(verdict, Passed) and verdict.measurement.confirmed


def now() -> str:
    """The time in UTC, ISO 8601."""
    return datetime.now(UTC).isoformat(timespec="seconds")
