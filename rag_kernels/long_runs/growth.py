"""Growing the archive: many problems, a turn of one round at a time, until they are done, or time or money is up.

Comes in: problem files, a `Session`, and the growth's budget. Goes out: attempts as they are judged, a `TurnEnded`
after each turn, and a `Grown` for each problem that is done. All state is on disk: a killed growth is resumed where it
stopped, and what it had spent stays spent. Knows nothing of terminals.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

from rag_kernels.archive.queries import leaderboard
from rag_kernels.archive.records import ArchiveError, Attempt, LLMCall, Run
from rag_kernels.budget import Ledger
from rag_kernels.eval.ids import content_id
from rag_kernels.eval.problem import load_problem
from rag_kernels.eval.records import ProblemError
from rag_kernels.long_runs.problem_queue import QueueEntry, next_entry, queue_entry
from rag_kernels.long_runs.side_by_side import Ended, run_side_by_side
from rag_kernels.records import Budget
from rag_kernels.run.journal import Told, read_journal, spent_before
from rag_kernels.run.session import Session, run_setting

log = logging.getLogger(__name__)

GROWTH_RUN = "growth"  # the command of the run that stands for one growth, all its problems included
TRIES = 3  # of a turn that ends in an error


@dataclass(frozen=True, slots=True)
class TurnEnded:
    """Report that one turn of a problem is over."""

    entry: QueueEntry
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Grown:
    """Hold the result of one problem. `failure`: why it could not be worked on; `skipped`: it was done before."""

    path: Path
    name: str
    attempts: tuple[Attempt, ...]
    failure: str = ""
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class TurnOutcome:
    """Say how a turn ended. `final`: another try would not help. `no_room`: too little time or money was left."""

    failure: str = ""
    final: bool = False
    no_room: bool = False


@dataclass(frozen=True, slots=True)
class GrowthRun:
    """Hold one growth: `run` is its record. One that was killed is resumed, and has one budget."""

    run: Run
    growth: str
    runs: dict[str, Run]  # by problem id: all runs of the growth, those before it was resumed included

    def is_of(self, created_at: str) -> bool:
        """Return whether an ISO 8601 moment is in this run. Attempts of older versions are dated to the second."""
        started, moment = datetime.fromisoformat(self.run.started_at), datetime.fromisoformat(created_at)
        return moment >= (started if moment.microsecond else started.replace(microsecond=0))


def open_growth_run(paths: Sequence[Path], session: Session, *, resume: bool) -> GrowthRun:
    """Return the growth run that was cut short, or a new one: of the last growth over these problems, or a new one."""
    folder = content_id("f", *sorted(str(p.resolve()) for p in paths))
    known = [r for r in session.archive.runs(limit=100_000) if r.command in (GROWTH_RUN, "grow")] if resume else []
    known = [r for r in known if run_setting(r, "folder") == folder]
    growth = str(run_setting(known[0], "growth")) if known else f"w_{secrets.token_hex(6)}"
    known = [r for r in known if run_setting(r, "growth") == growth]
    cut_short = next((r for r in known if r.command == GROWTH_RUN), None)
    if cut_short is None or cut_short.status == "finished":
        settings = json.dumps({"growth": growth, "folder": folder}, sort_keys=True)
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        cut_short = Run(f"n_{secrets.token_hex(6)}", GROWTH_RUN, f"{len(paths)} problems", settings, started)
    runs = {str(run_setting(r, "problem_id")): r for r in reversed(known) if r.command == "grow"}
    return GrowthRun(cut_short, growth, runs)


def grow(
    paths: Sequence[Path],
    session: Session,
    growth_run: GrowthRun | None = None,
    *,
    until: datetime | None = None,
) -> Iterator[Attempt | TurnEnded | Grown]:
    """Grow the archive: yield every attempt, the end of every turn, and every problem that is done with.

    `growth_run` is one to go on with; without it a new one is begun.
    """
    growth_run = growth_run or open_growth_run(paths, session, resume=False)
    session.archive.start_run(growth_run.run)
    status = "interrupted"
    try:
        entries: dict[Path, QueueEntry] = {}
        for event in _queue(paths, session, growth_run):
            if isinstance(event, QueueEntry):
                entries[event.path] = event
            else:
                yield event
        turns = TurnScheduler(entries, session, growth_run, until)
        for came in run_side_by_side(turns.begin, lambda: turns.at_once):
            if isinstance(came, Ended):
                yield from turns.end(came.key, came.result)
            else:
                yield came
        status = "finished"
    finally:
        session.archive.finish_run(growth_run.run.id, status)


class TurnScheduler:
    """Choose whose turn it is, and what follows from its end. `at_once` turns run side by side, a problem each."""

    def __init__(
        self, waiting: dict[Path, QueueEntry], session: Session, growth_run: GrowthRun, until: datetime | None
    ) -> None:
        self._waiting, self._session, self._growth_run, self._until = waiting, session, growth_run, until
        self._rounds = session.options.budget.rounds
        self.at_once = session.at_once
        self._among: dict[Path, int] = {}  # how many shared what was left when a turn began
        self._over = False

    def begin(self) -> tuple[QueueEntry, Generator[Attempt, None, TurnOutcome]] | None:
        """Return the most promising problem and its turn; None when none waits, or time or money is up."""
        entry = None if self._over else next_entry(list(self._waiting.values()), self._rounds)
        if entry is None:
            return None
        budget = left_of(self._growth_run, self._session, self._until)
        if budget is None:
            log.info("The time or the money is up: the rest waits for --resume.")
            self._over = True
            return None
        del self._waiting[entry.path]
        self._among[entry.path] = self.at_once
        _run_of(entry, self._session, self._growth_run)  # here, since turns may run in other threads
        return entry, _turn(entry, self._session, self._growth_run, shared(budget, self.at_once))

    def end(self, before: QueueEntry, outcome: TurnOutcome) -> Iterator[TurnEnded | Grown]:
        """Take a problem back after its turn; yield the end of the turn, and the problem if it is done."""
        session, growth_run = self._session, self._growth_run
        entry = _after(before, session, growth_run, outcome)
        if entry.turns == before.turns and not outcome.failure and not outcome.no_room:
            outcome = TurnOutcome(_last_error(entry, session, growth_run))
            entry = _after(before, session, growth_run, outcome)
        self._waiting[entry.path] = entry
        yield TurnEnded(entry, outcome.failure)
        if outcome.no_room and entry.turns == before.turns:
            if self._among[entry.path] == 1:
                log.info("There is no room for another call: the rest waits for --resume.")
                self._over = True
            self.at_once = 1  # a share has no room, but all that is left may
        elif not entry.is_open(self._rounds) or entry.failures >= TRIES:
            del self._waiting[entry.path]
            yield Grown(entry.path, entry.path.stem, _attempts(entry, session, growth_run), failure=outcome.failure)


def shared(left: Budget, among: int) -> Budget:
    """Return one turn's part of tokens and dollars when `among` run at once; time passes for all of them alike."""
    tokens = None if left.tokens is None else left.tokens // among
    return replace(left, tokens=tokens, usd=None if left.usd is None else left.usd / among)


def _queue(paths: Sequence[Path], session: Session, growth_run: GrowthRun) -> Iterator[Attempt | QueueEntry | Grown]:
    """Yield an entry for each problem that is not done. One that was killed after all its rounds is confirmed."""
    places = leaderboard(session.archive, None, session.judge.device.key)
    known: dict[str, float] = {}
    for place in places:
        known[place.problem_id] = max(known.get(place.problem_id, 0.0), place.floor_fraction or 0.0)
    for path in paths:
        try:
            problem = load_problem(path)
        except ProblemError as error:
            yield Grown(path, path.stem, (), failure=str(error))
            continue
        entry = _after(QueueEntry(path, problem, known.get(problem.id)), session, growth_run)
        if entry.is_open(session.options.budget.rounds):
            yield entry
        else:
            run = growth_run.runs.get(problem.id)
            if run is not None and session.archive.run_status(run.id) == "running":
                yield from _turn(entry, session, growth_run, session.options.budget, more=0)
            yield Grown(path, path.stem, _attempts(entry, session, growth_run), skipped=True)


def _turn(
    entry: QueueEntry, session: Session, growth_run: GrowthRun, left: Budget, *, more: int = 1
) -> Generator[Attempt, None, TurnOutcome]:
    """Run one more round of a problem. A round that was cut short is finished first."""
    run = _run_of(entry, session, growth_run)
    spent = spent_before(session.archive, run.id)
    budget = Budget(
        rounds=entry.turns + more,
        seconds=None if left.seconds is None else spent.seconds + left.seconds,
        tokens=None if left.tokens is None else spent.tokens + left.tokens,
        usd=None if left.usd is None else spent.usd + left.usd,
    )
    ledger = Ledger(budget, spent=spent)
    try:
        yield from session.generate(entry.problem, run, ledger=ledger)
    except ProblemError as error:
        return TurnOutcome(str(error), final=True)
    except ArchiveError:
        raise  # nothing that follows could be kept
    except Exception as error:  # one problem must not end the growth; the report says what went wrong
        log.warning("%s: %s", entry.path.stem, error)
        return TurnOutcome(str(error) or type(error).__name__)
    return TurnOutcome(no_room=ledger.refused or ledger.seconds_left() == 0)


def _run_of(entry: QueueEntry, session: Session, growth_run: GrowthRun) -> Run:
    run = growth_run.runs.get(entry.problem.id)
    if run is None:
        folder = run_setting(growth_run.run, "folder")
        run = session.new_run("grow", entry.problem, growth=growth_run.growth, folder=folder, night=growth_run.run.id)
        growth_run.runs[entry.problem.id] = run
    return run


def _after(
    entry: QueueEntry, session: Session, growth_run: GrowthRun, outcome: TurnOutcome | None = None
) -> QueueEntry:
    """Return the entry as the archive has it now."""
    run = growth_run.runs.get(entry.problem.id)
    if run is None:
        return entry
    attempts, calls = session.archive.attempts(run.id), session.archive.calls(run.id)
    judged = {attempt.candidate.id for attempt in attempts}
    rounds: dict[int, list[Told]] = {}
    for told in read_journal(session.archive, run.id):
        rounds.setdefault(told.brief.round, []).append(told)
    whole = [asked for asked in rounds.values() if _is_whole(asked, judged, session.options.width)]
    failures = 0 if outcome is None or not outcome.failure else TRIES if outcome.final else entry.failures + 1
    return queue_entry(
        entry.path,
        entry.problem,
        entry.floor_fraction,
        attempts,
        calls,
        turns=len(whole),
        barren=any(not any(told.drafts or told.failed for told in asked) for asked in whole),
        failures=failures,
    )


def _is_whole(asked: Sequence[Told], judged: set[str], width: int) -> bool:
    """Return whether all drafts of a round were asked for, came, and are judged."""
    answers = [told.drafts for told in asked]
    came = all(drafts is not None and all(d.candidate.id in judged for d in drafts) for drafts in answers)
    return came and sum(told.brief.width for told in asked) >= width


def _attempts(entry: QueueEntry, session: Session, growth_run: GrowthRun) -> tuple[Attempt, ...]:
    run = growth_run.runs.get(entry.problem.id)
    return tuple(session.archive.attempts(run.id)) if run else ()


def _last_error(entry: QueueEntry, session: Session, growth_run: GrowthRun) -> str:
    """Return why a turn brought nothing, as far as the models said."""
    calls = session.archive.calls(growth_run.runs[entry.problem.id].id)
    return next((call.error for call in reversed(calls) if call.error), "The writer brought nothing.")


def calls_of(growth_run: GrowthRun, session: Session) -> list[LLMCall]:
    """Return the calls to models since the growth run began."""
    return [
        call
        for run in growth_run.runs.values()
        for call in session.archive.calls(run.id)
        if growth_run.is_of(call.created_at)
    ]


def left_of(growth_run: GrowthRun, session: Session, until: datetime | None) -> Budget | None:
    """Return what the growth run may still spend, all problems together; None when time or money is up."""
    budget, calls = session.options.budget, calls_of(growth_run, session)
    began = datetime.fromisoformat(growth_run.run.started_at).astimezone()
    limits = [] if budget.seconds is None else [budget.seconds - (datetime.now().astimezone() - began).total_seconds()]
    if until is not None:
        limits.append((until - datetime.now()).total_seconds())
    seconds = min(limits, default=None)
    usd = None if budget.usd is None else budget.usd - sum(call.cost_usd or 0.0 for call in calls)
    used = sum(call.prompt_tokens + call.completion_tokens for call in calls)
    tokens = None if budget.tokens is None else budget.tokens - used
    if any(left is not None and left <= 0 for left in (seconds, usd, tokens)):
        return None
    return replace(budget, seconds=seconds, usd=usd, tokens=tokens)


def next_time(clock: str, *, now: datetime | None = None) -> datetime:
    """Return the next moment at which a clock shows `HH:MM`; raises ValueError when that is no time of day."""
    now = now or datetime.now()
    wanted = datetime.strptime(clock, "%H:%M").time()
    moment = datetime.combine(now.date(), wanted)
    return moment if moment > now else moment + timedelta(days=1)
