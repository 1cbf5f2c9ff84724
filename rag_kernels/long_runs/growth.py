"""Growing the archive: many problems, a turn of one round at a time, until they are done, or time or money is up.

Comes in: problem files, a `Session`, and what the night may take. Goes out: attempts as they are judged, a `Turn`
after each turn, and a `Grown` for each problem that is done. All that it knows is on disk: a killed growth goes on
where it stood, and its budget does not begin anew. Knows nothing of terminals.
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
from rag_kernels.long_runs.problem_queue import Entry, history, next_entry
from rag_kernels.long_runs.side_by_side import Ended, together
from rag_kernels.records import Budget
from rag_kernels.run.journal import Told, read_journal, spent_before
from rag_kernels.run.session import Session, run_setting

log = logging.getLogger(__name__)

NIGHT = "growth"  # the command of the run that stands for a whole night
TRIES = 3  # of a turn that ends in an error


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of a problem is over."""

    entry: Entry
    failure: str = ""


@dataclass(frozen=True, slots=True)
class Grown:
    """What became of one problem. `failure` says why it could not be worked on; `skipped` that it was done before."""

    path: Path
    name: str
    attempts: tuple[Attempt, ...]
    failure: str = ""
    skipped: bool = False


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a turn ended. `final`: another try would not help. `no_room`: the night's time or money did not suffice."""

    failure: str = ""
    final: bool = False
    no_room: bool = False


@dataclass(frozen=True, slots=True)
class Night:
    """One stretch of work on a growth: `run` is its record. A killed night is gone on with; it has one budget."""

    run: Run
    growth: str
    runs: dict[str, Run]  # by problem id: all of the growth, earlier nights included

    def is_of(self, created_at: str) -> bool:
        """Whether something happened in this night. Attempts of older versions are dated to the second."""
        started, moment = datetime.fromisoformat(self.run.started_at), datetime.fromisoformat(created_at)
        return moment >= (started if moment.microsecond else started.replace(microsecond=0))


def open_night(paths: Sequence[Path], session: Session, *, resume: bool) -> Night:
    """The night that was cut short, or a new one: of the last growth over the same problems, or of a new growth."""
    folder = content_id("f", *sorted(str(p.resolve()) for p in paths))
    known = [r for r in session.archive.runs(limit=100_000) if r.command in (NIGHT, "grow")] if resume else []
    known = [r for r in known if run_setting(r, "folder") == folder]
    growth = str(run_setting(known[0], "growth")) if known else f"w_{secrets.token_hex(6)}"
    known = [r for r in known if run_setting(r, "growth") == growth]
    cut_short = next((r for r in known if r.command == NIGHT), None)
    if cut_short is None or cut_short.status == "finished":
        settings = json.dumps({"growth": growth, "folder": folder}, sort_keys=True)
        started = datetime.now(UTC).isoformat(timespec="milliseconds")
        cut_short = Run(f"n_{secrets.token_hex(6)}", NIGHT, f"{len(paths)} problems", settings, started)
    runs = {str(run_setting(r, "problem_id")): r for r in reversed(known) if r.command == "grow"}
    return Night(cut_short, growth, runs)


def grow(
    paths: Sequence[Path], session: Session, night: Night | None = None, *, until: datetime | None = None
) -> Iterator[Attempt | Turn | Grown]:
    """Yield every attempt, every turn, and every problem that is done with; of a new growth unless `night` is given."""
    night = night or open_night(paths, session, resume=False)
    session.archive.start_run(night.run)
    status = "interrupted"
    try:
        entries: dict[Path, Entry] = {}
        for event in _queue(paths, session, night):
            if isinstance(event, Entry):
                entries[event.path] = event
            else:
                yield event
        turns = Turns(entries, session, night, until)
        for came in together(turns.begin, lambda: turns.at_once):
            if isinstance(came, Ended):
                yield from turns.end(came.key, came.result)
            else:
                yield came
        status = "finished"
    finally:
        session.archive.finish_run(night.run.id, status)


class Turns:
    """Whose turn it is, and what follows from one that has ended. `at_once` turns run side by side, a problem each."""

    def __init__(self, waiting: dict[Path, Entry], session: Session, night: Night, until: datetime | None) -> None:
        self._waiting, self._session, self._night, self._until = waiting, session, night, until
        self._rounds = session.options.budget.rounds
        self.at_once = session.at_once
        self._among: dict[Path, int] = {}  # how many shared what was left when a turn began
        self._over = False

    def begin(self) -> tuple[Entry, Generator[Attempt, None, Outcome]] | None:
        """The most promising problem with its share of what is left; None when none waits, or the night is over."""
        entry = None if self._over else next_entry(list(self._waiting.values()), self._rounds)
        if entry is None:
            return None
        budget = left_of(self._night, self._session, self._until)
        if budget is None:
            log.info("The time or the money is up: the rest waits for --resume.")
            self._over = True
            return None
        del self._waiting[entry.path]
        self._among[entry.path] = self.at_once
        _run_of(entry, self._session, self._night)  # here, since turns may run in other threads
        return entry, _turn(entry, self._session, self._night, shared(budget, self.at_once))

    def end(self, before: Entry, outcome: Outcome) -> Iterator[Turn | Grown]:
        session, night = self._session, self._night
        entry = _after(before, session, night, outcome)
        if entry.turns == before.turns and not outcome.failure and not outcome.no_room:
            outcome = Outcome(_last_error(entry, session, night))
            entry = _after(before, session, night, outcome)
        self._waiting[entry.path] = entry
        yield Turn(entry, outcome.failure)
        if outcome.no_room and entry.turns == before.turns:
            if self._among[entry.path] == 1:
                log.info("There is no room for another call: the rest waits for --resume.")
                self._over = True
            self.at_once = 1  # a share has no room, but all that is left may
        elif not entry.is_open(self._rounds) or entry.failures >= TRIES:
            del self._waiting[entry.path]
            yield Grown(entry.path, entry.path.stem, _attempts(entry, session, night), failure=outcome.failure)


def shared(left: Budget, among: int) -> Budget:
    """A turn's part of tokens and dollars, when so many run at once; time passes for all of them alike."""
    tokens = None if left.tokens is None else left.tokens // among
    return replace(left, tokens=tokens, usd=None if left.usd is None else left.usd / among)


def _queue(paths: Sequence[Path], session: Session, night: Night) -> Iterator[Attempt | Entry | Grown]:
    """An entry for each problem with something left to do, from the archive. One that was cut short after all its
    rounds still has its winner to confirm."""
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
        entry = _after(Entry(path, problem, known.get(problem.id)), session, night)
        if entry.is_open(session.options.budget.rounds):
            yield entry
        else:
            run = night.runs.get(problem.id)
            if run is not None and session.archive.run_status(run.id) == "running":
                yield from _turn(entry, session, night, session.options.budget, more=0)
            yield Grown(path, path.stem, _attempts(entry, session, night), skipped=True)


def _turn(
    entry: Entry, session: Session, night: Night, left: Budget, *, more: int = 1
) -> Generator[Attempt, None, Outcome]:
    """One more round of a problem. What was cut short is finished first."""
    run = _run_of(entry, session, night)
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
        return Outcome(str(error), final=True)
    except ArchiveError:
        raise  # nothing that follows could be kept
    except Exception as error:  # a night must not end with one problem; the report says what went wrong
        log.warning("%s: %s", entry.path.stem, error)
        return Outcome(str(error) or type(error).__name__)
    return Outcome(no_room=ledger.refused or ledger.seconds_left() == 0)


def _run_of(entry: Entry, session: Session, night: Night) -> Run:
    run = night.runs.get(entry.problem.id)
    if run is None:
        folder = run_setting(night.run, "folder")
        run = session.new_run("grow", entry.problem, growth=night.growth, folder=folder, night=night.run.id)
        night.runs[entry.problem.id] = run
    return run


def _after(entry: Entry, session: Session, night: Night, outcome: Outcome | None = None) -> Entry:
    """The entry as the archive has it now."""
    run = night.runs.get(entry.problem.id)
    if run is None:
        return entry
    attempts, calls = session.archive.attempts(run.id), session.archive.calls(run.id)
    judged = {attempt.candidate.id for attempt in attempts}
    rounds: dict[int, list[Told]] = {}
    for told in read_journal(session.archive, run.id):
        rounds.setdefault(told.brief.round, []).append(told)
    whole = [asked for asked in rounds.values() if _is_whole(asked, judged, session.options.width)]
    failures = 0 if outcome is None or not outcome.failure else TRIES if outcome.final else entry.failures + 1
    return history(
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
    """Whether all drafts of a round were asked for, came, and are judged."""
    answers = [told.drafts for told in asked]
    came = all(drafts is not None and all(d.candidate.id in judged for d in drafts) for drafts in answers)
    return came and sum(told.brief.width for told in asked) >= width


def _attempts(entry: Entry, session: Session, night: Night) -> tuple[Attempt, ...]:
    run = night.runs.get(entry.problem.id)
    return tuple(session.archive.attempts(run.id)) if run else ()


def _last_error(entry: Entry, session: Session, night: Night) -> str:
    """Why a turn brought nothing, as far as the models said."""
    calls = session.archive.calls(night.runs[entry.problem.id].id)
    return next((call.error for call in reversed(calls) if call.error), "The writer brought nothing.")


def calls_of(night: Night, session: Session) -> list[LLMCall]:
    """What was asked of models since the night began."""
    return [
        call for run in night.runs.values() for call in session.archive.calls(run.id) if night.is_of(call.created_at)
    ]


def left_of(night: Night, session: Session, until: datetime | None) -> Budget | None:
    """What the night may still take, all problems together; None when time or money is up."""
    budget, calls = session.options.budget, calls_of(night, session)
    began = datetime.fromisoformat(night.run.started_at).astimezone()
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
    """The next moment at which a clock shows `HH:MM`; raises ValueError when that is no time of day."""
    now = now or datetime.now()
    wanted = datetime.strptime(clock, "%H:%M").time()
    moment = datetime.combine(now.date(), wanted)
    return moment if moment > now else moment + timedelta(days=1)
