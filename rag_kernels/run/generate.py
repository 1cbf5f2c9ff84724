"""The search: from a problem to judged, archived attempts. Read `generate` first.

Comes in: a problem and the seams (writer, judge, archive, retrieval), handed in as arguments. Goes out: attempts,
each on disk before it is yielded, so that Ctrl-C or a kill loses nothing that was judged. Knows nothing of
terminals, settings, or which writer, judge or archive it drives.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import Attempt, Run
from rag_kernels.budget import Ledger
from rag_kernels.eval.records import (
    Crashed,
    FunctionalProblem,
    Judged,
    Passed,
    Problem,
    ProblemError,
    Rejected,
    Wrong,
    with_labels_of,
)
from rag_kernels.ingest.description.pipeline import BackgroundIndex
from rag_kernels.records import Draft, SaysWhyNot, StreamingWriter, TellsBaselines, Writer
from rag_kernels.run.briefing import NO_WISHES, Briefing, Retrieve, Techniques, Wishes, no_techniques
from rag_kernels.run.draft_flow import DraftFlow
from rag_kernels.run.history import History
from rag_kernels.run.journal import Journal
from rag_kernels.run.standings import as_attempt, is_ahead, is_confirmed, merit, standing, winner
from rag_kernels.text.likeness import label_near_copy

if TYPE_CHECKING:
    from rag_kernels.eval.judge import Judge

log = logging.getLogger(__name__)

MAX_CONFIRMATIONS = 3
CUT_SHORT = ("running", "interrupted")  # how a run stands that did not end by itself


Functionalize = Callable[[Problem], FunctionalProblem]
Index = Callable[[Attempt], object]


@dataclass(frozen=True, slots=True)
class Parts:
    """The seams of a run but its writer; beside each is what `open_session` puts there in the shipped tool."""

    functionalize: Functionalize  # ingest.functional.functionalize.functionalize_to_fit: a call of tensors, by a child
    retrieve: Retrieve  # run.exemplars.Exemplars: archived kernels; for a model that reads them, judged here first
    judge: Judge  # eval.judge.LocalJudge, or cluster.ray_judge.ClusterJudge
    archive: Archive  # archive.store.FileArchive
    index: Index  # ingest.description.pipeline.index_attempt: embed the problem, put the vector into the archive
    techniques: Techniques = no_techniques  # run.technique_cards.TechniqueCards: for the prompt, where asked for


def generate(
    problem: Problem,
    parts: Parts,
    *,
    run: Run,
    writer: Writer,
    ledger: Ledger,
    width: int,
    wishes: Wishes = NO_WISHES,
    confirm: bool = True,
) -> Generator[Attempt, None, str]:
    """Write, judge and archive kernels for a problem until the budget or the writer's ideas are spent; return why it
    ended.

    The writer is `llm.writer.LLMWriter` where models are named, else `offline.writer.OfflineWriter`. Drafts are judged
    as they come, while a model writes others (`DraftFlow`). A run that the archive knows already goes on where it
    stood: nothing that was judged is judged again, and no reply that was paid for is asked for again. Raises
    ProblemError where no kernel could be proved right, and WriterError where the writer brings nothing at all.
    """
    judge, archive = parts.judge, parts.archive
    functional = parts.functionalize(problem)
    require_verifiable(functional)
    cut_short = archive.run_status(run.id) in CUT_SHORT
    archive.start_run(run)
    history, journal = History(archive.attempts(run.id)), Journal(archive, run.id, cut_short=cut_short)
    background = BackgroundIndex(parts.index)
    briefing = Briefing(run.id, functional, judge.device, writer, history, wishes, parts.retrieve, parts.techniques)
    if isinstance(writer, StreamingWriter):  # the others draft by rule
        writer.go_on(journal.past())
        briefing.times = judge.baseline_times(functional) if isinstance(judge, TellsBaselines) else None
    briefing.remember([shown for told in journal.told for shown in told.brief.exemplars])
    flow = DraftFlow(writer, ledger, history, journal, width=width, briefing=briefing, prepare=judge.build_ahead)
    with _finishing(archive, run), closing(background):
        for drafts in flow:
            candidates = [came.draft.candidate for came in drafts.values()]
            for candidate, verdict in judge.judge(functional, candidates, flow.more):
                came = drafts[candidate.id]
                judged = label_near_copy(verdict, candidate.source, briefing.others(candidate))
                attempt = as_attempt(history, run, functional, came.draft, judged, writer.name, came.round)
                archive.record_attempt(attempt)
                background.add(attempt)
                history.add(attempt)
                yield attempt
                if ledger.seconds_left() == 0:
                    flow.stop(ledger.exhausted(within_round=True) or "The time is up.")
                    break
                flow.judged()
        if confirm:
            yield from confirm_best(history, run, functional, judge, archive)
        log.info("%s", flow.stopped)
        background.finish()
    return flow.stopped if history.attempts else with_reason(flow.stopped, writer, functional)


@contextmanager
def _finishing(archive: Archive, run: Run) -> Iterator[None]:
    """Record at the end how a run ended: a run whose attempts nobody asks for any more is an interrupted one."""
    status = "interrupted"
    try:
        yield
        status = "finished"
    except Exception:
        status = "failed"
        raise
    finally:
        archive.finish_run(run.id, status)


def with_reason(stopped: str, writer: Writer, problem: FunctionalProblem) -> str:
    """Return why a run without a candidate ended, with what the writer has no kernel for where it can say so."""
    why = writer.why_not(problem) if isinstance(writer, SaysWhyNot) else ""
    return f"{stopped} {why}".strip()


def require_verifiable(problem: FunctionalProblem) -> None:
    """Raise a ProblemError when no kernel for this problem could be proved right."""
    if problem.uses_random:
        raise ProblemError(
            f"{problem.problem.name} draws random numbers in its forward (dropout?), so no kernel can be checked "
            "against it: set the dropout probability to 0 or remove it."
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
        judged = _keep_labels(judge.confirm(problem, fastest.candidate), fastest.judged)
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


def _keep_labels(judged: Judged, before: Judged) -> Judged:
    """Return a confirmation with what the first judgement saw of the kernel: once is enough, and chance hides it."""
    if not isinstance(judged.verdict, Passed) or not isinstance(before.verdict, Passed):
        return judged
    return replace(judged, verdict=with_labels_of(judged.verdict, before.verdict))
