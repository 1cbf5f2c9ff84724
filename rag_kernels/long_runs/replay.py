"""Repeat a recorded run without a model: the writer gets its recorded briefs, and the recorded replies.

Comes in: a run, an archive that recorded it, a judge. Goes out: a `Replayed` for each candidate and each confirmation,
and a `Differs` for everything else that came out another way. Every step starts from what was recorded, so that one
difference does not make the next. The judgements are attempts of a run of their own. Knows nothing of terminals, and
reaches no network.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from rag_kernels.archive.records import Attempt, LLMCall, Run
from rag_kernels.eval.judge import Judge
from rag_kernels.eval.machine.ceilings import higher
from rag_kernels.eval.records import FunctionalProblem, Passed, ProblemError, verdict_name
from rag_kernels.llm.client import Reply
from rag_kernels.llm.recorded import Recorded
from rag_kernels.llm.request import Message
from rag_kernels.options import Options
from rag_kernels.records import Draft, Writer, WriterError
from rag_kernels.run.history import History, new_drafts
from rag_kernels.run.journal import Told, read_journal
from rag_kernels.run.session import Session
from rag_kernels.run.standings import as_attempt
from rag_kernels.text.likeness import label_near_copy

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Replayed:
    """Hold a recorded judgement beside the repeated one. `difference` is empty when it came out the same."""

    recorded: Attempt
    again: Attempt | None  # None: the writer did not draft this candidate
    difference: str


@dataclass(frozen=True, slots=True)
class Differs:
    """Report that something other than a judgement came out another way."""

    what: str


class RecordedModel:
    """Answer as the run was answered. A prompt that was not asked then gets the next reply of its kind."""

    def __init__(self, calls: Sequence[LLMCall]) -> None:
        self._recorded = Recorded(calls)
        self._lock = threading.Lock()
        self.noted: list[str] = []

    def complete(
        self,
        model: str,
        messages: Sequence[Message],
        *,
        run_id: str,
        purpose: str,
        temperature: float | None,
        timeout_s: float,
    ) -> Reply:
        """Return the recorded reply; raises WriterError when the run has none."""
        reply = self._recorded.take(model, messages)
        if reply is not None:
            return reply
        if self._recorded.failed(model, messages):
            raise WriterError("This request failed in the recorded run, too.")
        with self._lock:
            self.noted.append(f"the prompt for {purpose!r} is not the one that {model} was asked then")
        reply = self._recorded.take_next(model, purpose)
        if reply is None:
            raise WriterError(f"The run holds no further reply of {model} for {purpose!r}.")
        return reply


def recorded_options(run: Run) -> Options:
    """Return the options that the run was started with; fields that this version does not know are left out."""
    known = {field.name for field in fields(Options)}
    asked: dict[str, Any] = {name: value for name, value in json.loads(run.settings).items() if name in known}
    return Options(**asked | {name: tuple(value) for name, value in asked.items() if isinstance(value, list)})


def find_run(runs: Sequence[Run], name: str) -> Run:
    """Return the run with this id, or for `latest` the newest one of `generate` or `grow`; raises ProblemError
    without one.
    """
    for run in runs:
        if run.id == name or (name == "latest" and run.command in ("generate", "grow")):
            return run
    raise ProblemError(f"The archive has no run {name!r}: `generate` prints the id of its run; see `rag-kernels app`.")


def replay(run: Run, session: Session, *, writer: Writer, model: RecordedModel) -> Iterator[Replayed | Differs]:
    """Draft and judge again what the run drafted and judged. `writer` asks `model`, when it asks any.

    Raises ProblemError when the archive lacks what a replay needs.
    """
    archive, told = session.archive, read_journal(session.archive, run.id)
    recorded = archive.attempts(run.id)
    if not told or not recorded:
        raise ProblemError(
            f"Run {run.id} cannot be replayed: the archive holds no {'attempt' if told else 'journal'} of it. "
            "Runs of `generate` and `grow` can be."
        )
    problem = told[0].brief.problem
    functional = session.promised(problem)
    if functional != problem:
        yield Differs(f"{problem.problem.name} is functionalized in another way than then")
    _remember(session.judge, recorded)
    again = session.new_run("replay", problem.problem, replay_of=run.id)
    archive.start_run(again)
    status, steps = "interrupted", _Steps(again, functional, session, writer.name)
    try:
        for one in told:
            yield from _repeat(one, recorded, steps, writer)
            yield from map(Differs, _named(model.noted, one))
            model.noted.clear()
        yield from steps.confirm(recorded)
        status = "finished"
    finally:
        archive.finish_run(again.id, status)


def _remember(judge: Judge, recorded: Sequence[Attempt]) -> None:
    """Hold this machine to no lower ceilings than the run knew of it: what was possible then is so now."""
    for attempt in recorded:
        then, here = attempt.judged.device, judge.device
        if replace(then, machine=then.machine or here.machine).key == here.key:  # older runs do not say which machine
            judge.device = higher(here, then)


def _named(differences: Sequence[str], told: Told) -> list[str]:
    return [f"round {told.brief.round}: {difference}" for difference in dict.fromkeys(differences)]


def _repeat(told: Told, recorded: Sequence[Attempt], steps: _Steps, writer: Writer) -> Iterator[Replayed | Differs]:
    """Repeat one brief: yield what the writer makes of it now, and the new judgements of its candidates."""
    wanted = {a.candidate.id: a for a in reversed(recorded) if a.round == told.brief.round}
    before = {a.candidate.id for a in told.brief.attempts}
    try:
        drafts = {d.candidate.id: d for d in new_drafts(writer.propose(told.brief), told.brief)}
    except WriterError as error:
        yield Differs(f"round {told.brief.round}: the writer had nothing: {error}")
        drafts = {}
    then = {d.candidate.id for d in told.drafts or ()}
    for new in drafts.keys() - then if told.drafts is not None else ():
        yield Differs(f"round {told.brief.round}: candidate {new} was not drafted then")
    for lost in (then & wanted.keys()) - drafts.keys() - before:
        yield Replayed(wanted[lost], None, "the writer did not draft it this time")
    yield from steps.judge([d for d in drafts.values() if d.candidate.id in wanted], wanted, told)


class _Steps:
    """Judge, record and compare."""

    def __init__(self, run: Run, functional: FunctionalProblem, session: Session, writer: str) -> None:
        self._run, self._functional, self._session, self._writer = run, functional, session, writer
        self._history = History()

    def judge(self, drafts: Sequence[Draft], wanted: dict[str, Attempt], told: Told) -> Iterator[Replayed]:
        by_id = {draft.candidate.id: draft for draft in drafts}
        shown = [(s.kernel.id, s.kernel.source) for s in told.brief.exemplars]
        for candidate, verdict in self._session.judge.judge(self._functional, [d.candidate for d in drafts]):
            others = [(name, source) for name, source in shown if name != candidate.id]
            judged = label_near_copy(verdict, candidate.source, others)
            attempt = as_attempt(
                self._history, self._run, self._functional, by_id[candidate.id], judged, self._writer, told.brief.round
            )
            yield self._record(attempt, wanted[candidate.id])

    def confirm(self, recorded: Sequence[Attempt]) -> Iterator[Replayed]:
        """Repeat the second and later judgements of a candidate, which were confirmations."""
        seen: set[str] = set()
        for then in recorded:
            if then.candidate.id in seen:
                draft = Draft(then.candidate, then.idea, exemplars=then.exemplars, model=then.model, note=then.note)
                judged = self._session.judge.confirm(self._functional, then.candidate)
                attempt = as_attempt(
                    self._history, self._run, self._functional, draft, judged, self._writer, then.round
                )
                yield self._record(attempt, then)
            seen.add(then.candidate.id)

    def _record(self, attempt: Attempt, then: Attempt) -> Replayed:
        self._session.archive.record_attempt(attempt)
        self._session.index(attempt)
        self._history.add(attempt)
        return Replayed(then, attempt, difference(then, attempt))


def difference(then: Attempt, now: Attempt) -> str:
    """Return how two judgements of a candidate differ; empty when they agree. Times may differ."""
    before, after = then.judged.verdict, now.judged.verdict
    if type(before) is not type(after):
        reason = "" if isinstance(after, Passed) else f": {after.reason}"
        return f"{verdict_name(before)} then, {verdict_name(after)} now{reason}"
    if isinstance(before, Passed) and isinstance(after, Passed) and before.precision != after.precision:
        return f"{before.precision} precision then, {after.precision} now"
    return ""
