"""The search: from a problem to judged, archived attempts. Read `generate` first.

Comes in: a problem and the seams (writer, judge, archive, retrieval), handed in as arguments. Goes out: attempts,
each on disk before it is yielded, so that Ctrl-C or a kill loses nothing that was judged. Knows nothing of
terminals, settings, or which writer, judge or archive it drives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt, Edge, Run
from rag_kernels.budget import Ledger
from rag_kernels.eval.records import (
    Candidate,
    Crashed,
    FunctionalProblem,
    Judged,
    Passed,
    Problem,
    ProblemError,
    Rejected,
    Wrong,
)
from rag_kernels.records import Brief, Draft, Learnt, Shown, StreamingWriter, Writer
from rag_kernels.run.draft_flow import Flow
from rag_kernels.run.history import History
from rag_kernels.run.journal import Journal
from rag_kernels.text.likeness import label_near_copy

if TYPE_CHECKING:
    from rag_kernels.eval.judge import Judge

log = logging.getLogger(__name__)

MAX_CONFIRMATIONS = 3
CUT_SHORT = ("running", "interrupted")  # how a run stands that did not end by itself


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

    Drafts are judged as they come, while a model writes others (`flow`). A run that the archive knows already goes
    on where it stood: nothing that was judged is judged again, and no reply that was paid for is asked for again.
    """
    functional = functionalize(problem)
    require_verifiable(functional)
    cut_short = archive.run_status(run.id) in CUT_SHORT
    archive.start_run(run)
    history, journal, later = History(archive.attempts(run.id)), Journal(archive, run.id, cut_short=cut_short), Later()
    if isinstance(writer, StreamingWriter):
        writer.go_on(journal.past())
    shelf = Shelf(lambda: retrieve(functional, history.attempts))
    shelf.remember([shown for told in journal.told for shown in told.brief.exemplars])

    def brief(number: int, count: int, asked: int) -> Brief:
        attempts, learnt = tuple(history.attempts), writer.learnt if isinstance(writer, StreamingWriter) else Learnt()
        return Brief(run.id, functional, judge.device, shelf.shown, attempts, hint, number, count, asked, learnt)

    flow = Flow(
        writer,
        ledger,
        history,
        journal,
        width=width,
        brief=brief,
        refresh=shelf.refresh,
        prepare=judge.build_ahead,
    )
    status = "interrupted"
    try:
        for drafts in flow:
            candidates = [came.draft.candidate for came in drafts.values()]
            for candidate, verdict in judge.judge(functional, candidates, flow.more):
                came = drafts[candidate.id]
                judged = label_near_copy(verdict, candidate.source, shelf.others(candidate))
                attempt = as_attempt(history, run, functional, came.draft, judged, writer.name, came.round)
                archive.record_attempt(attempt)
                later.do(index, attempt)
                history.add(attempt)
                yield attempt
                if ledger.seconds_left() == 0:
                    flow.stop(ledger.exhausted(within_round=True) or "The time is up.")
                    break
                flow.judged()
        if confirm:
            yield from confirm_best(history, run, functional, judge, archive)
        log.info("%s", flow.stopped)
        later.finish()
        status = "finished"
    except Exception:
        status = "failed"
        raise
    finally:
        later.close()
        archive.finish_run(run.id, status)


class Shelf:
    """What the writer is shown. It is looked for between judgements only, since it may have to be judged first."""

    def __init__(self, retrieve: Callable[[], Sequence[Shown]]) -> None:
        self._retrieve = retrieve
        self._sources: dict[str, str] = {}
        self.shown: tuple[Shown, ...] = ()

    def refresh(self) -> None:
        self.shown = tuple(self._retrieve())
        self.remember(self.shown)

    def remember(self, shown: Sequence[Shown]) -> None:
        self._sources |= {s.kernel.id: s.kernel.source for s in shown}

    def others(self, candidate: Candidate) -> list[tuple[str, str]]:
        """All that was shown in this run, but the candidate itself."""
        return [(name, source) for name, source in self._sources.items() if name != candidate.id]


class Later:
    """What need not hold up the judge (vectors, which can be made again): done in order in a thread of its own."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="later")
        self._begun: list[Future[object]] = []

    def do(self, work: Callable[[Attempt], object], attempt: Attempt) -> None:
        self._begun.append(self._pool.submit(work, attempt))

    def finish(self) -> None:
        """Wait for all of it; raises what went wrong."""
        for future in self._begun:
            future.result()

    def close(self) -> None:
        self._pool.shutdown(wait=True)


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
    """Judge the fastest passed candidate again in a fresh process, and the next one if it does not hold.

    One that is ahead of what is confirmed by less than both intervals costs no confirmation: chance orders these.
    """
    for _ in range(MAX_CONFIRMATIONS):
        known = winner(history.attempts)
        ahead = [a for a in standing(history.attempts) if known and (not is_confirmed(known) or is_ahead(a, known))]
        fastest = max(ahead, key=merit, default=None)
        if fastest is None:
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


def is_ahead(one: Attempt, other: Attempt) -> bool:
    """Whether a passed attempt is better than another by more than the intervals of both."""
    mine, theirs = one.judged.verdict, other.judged.verdict
    if not isinstance(mine, Passed) or not isinstance(theirs, Passed) or merit(one)[:2] != merit(other)[:2]:
        return merit(one) > merit(other)
    return mine.measurement.over_better.low > theirs.measurement.over_better.high


def is_confirmed(attempt: Attempt) -> bool:
    verdict = attempt.judged.verdict
    return isinstance(verdict, Passed) and verdict.measurement.confirmed


def now() -> str:
    """The time in UTC, ISO 8601, so fine that one run begins after another."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")
