"""Growing the archive: problem after problem, until they are done or the time is up.

Comes in: problem files and a `Session`. Goes out: attempts as they are judged, and a `Grown` for each problem. A
killed run can be started again: what is finished is skipped, what was cut short goes on. Knows nothing of terminals.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from archive.records import Attempt, Run
from eval.ids import content_id
from eval.problem import load_problem
from eval.records import ProblemError
from rag_kernels.session import Session, run_setting

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Grown:
    """What became of one problem. `failure` says why it could not be worked on; `skipped` that it was done before."""

    path: Path
    name: str
    attempts: tuple[Attempt, ...]
    failure: str = ""
    skipped: bool = False


def grow(
    paths: Sequence[Path], session: Session, *, until: datetime | None = None, resume: bool = False
) -> Iterator[Attempt | Grown]:
    """Yield every attempt, and after each problem what became of it. Stops before a problem when `until` is past."""
    folder = content_id("f", *sorted(str(p.resolve()) for p in paths))
    earlier = [r for r in session.archive.runs(limit=100_000) if r.command == "grow"] if resume else []
    earlier = [r for r in earlier if run_setting(r, "folder") == folder]
    growth = run_setting(earlier[0], "growth") if earlier else f"w_{secrets.token_hex(6)}"
    earlier = [r for r in earlier if run_setting(r, "growth") == growth]
    for path in paths:
        if is_over(until):
            log.info("The time is up: the rest waits for --resume.")
            return
        yield from _grow_one(path, session, earlier, growth=growth, folder=folder, until=until)


def _grow_one(
    path: Path, session: Session, earlier: Sequence[Run], *, growth: str, folder: str, until: datetime | None
) -> Iterator[Attempt | Grown]:
    attempts: list[Attempt] = []
    try:
        problem = load_problem(path)
        run = next((r for r in earlier if run_setting(r, "problem_id") == problem.id), None)
        if run is not None:
            attempts += session.archive.attempts(run.id)
        if run is not None and run.status == "finished":
            yield Grown(path, path.stem, tuple(attempts), skipped=True)
            return
        run = run or session.new_run("grow", problem, growth=growth, folder=folder)
        for attempt in session.generate(problem, run):
            attempts.append(attempt)
            yield attempt
            if is_over(until):
                break  # the run is left as interrupted, so that --resume goes on with it
    except ProblemError as error:
        yield Grown(path, path.stem, tuple(attempts), failure=str(error))
        return
    yield Grown(path, path.stem, tuple(attempts))


def is_over(until: datetime | None) -> bool:
    return until is not None and datetime.now() >= until


def next_time(clock: str, *, now: datetime | None = None) -> datetime:
    """The next moment at which a clock shows `HH:MM`; raises ValueError when that is no time of day."""
    now = now or datetime.now()
    wanted = datetime.strptime(clock, "%H:%M").time()
    moment = datetime.combine(now.date(), wanted)
    return moment if moment > now else moment + timedelta(days=1)
