"""`rag-kernels grow`: fill the archive from many problems."""

from __future__ import annotations

import fcntl
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_kernels.cli.shared.busy import busy
from rag_kernels.cli.shared.common import Json, emit, end_politely, problem_files
from rag_kernels.cli.shared.flags import with_search_flags

if TYPE_CHECKING:
    from datetime import datetime

    from rag_kernels.long_runs.growth import Grown, GrowthRun
    from rag_kernels.options import Options
    from rag_kernels.run.session import Session


@with_search_flags()
def grow(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Folders of KernelBench files, or files.")],
    until: Annotated[
        str | None, typer.Option("--until", metavar="HH:MM", help="Start nothing after this time.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the last growth over the same problems.")
    ] = False,
    report: Annotated[
        Path | None,
        typer.Option("--report", metavar="FOLDER", help="Where the report goes; by default `reports` in the archive."),
    ] = None,
    *,
    options: Options,
    as_json: Json = False,
) -> None:
    """Generate kernels for many problems, the most promising first, a round at a time; then write a report.

    Budgets are for the whole night. It may be killed: with --resume it goes on, and what was spent stays spent.

    Example: rag-kernels grow problems/ --until 07:00 --budget-usd 50 --resume
    """
    with ExitStack() as opened:
        with busy("reading the problems"):
            from rag_kernels.long_runs.growth import next_time, open_growth_run
            from rag_kernels.wiring import open_session

            try:
                deadline = next_time(until) if until else None
            except ValueError as error:
                why = f"--until {until} is no time of day: write it as HH:MM, for example 07:00."
                raise typer.BadParameter(why) from error
            files = problem_files(paths)
            end_politely()
            opened.enter_context(alone(files))
            session = opened.enter_context(open_session(options))
            growth_run = open_growth_run(files, session, resume=resume)
        folder = report or reports_folder(session)
        rows, finished = follow(files, session, growth_run, deadline, folder, as_json=as_json)
    show_summary(rows, of=len(files), as_json=as_json)
    if folder is not None and not as_json:
        print(f"The report is in {folder / growth_run.run.id}.md and .html.")
    if not finished:
        print("Interrupted; go on with the same command and --resume.", file=sys.stderr)
        raise typer.Exit(130)
    raise typer.Exit(0 if any(row["kernel_id"] for row in rows) else 1)


@contextmanager
def alone(files: list[Path]) -> Iterator[None]:
    """Lock out a second growth over the same problems: a timer that fires twice must not pay twice."""
    from rag_kernels.eval.ids import content_id
    from rag_kernels.eval.places import default_cache
    from rag_kernels.eval.records import ProblemError

    name = content_id("f", *sorted(str(f.resolve()) for f in files))
    default_cache().mkdir(parents=True, exist_ok=True)
    with (default_cache() / f"grow-{name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ProblemError("A growth over these problems is running already: wait for it, or stop it.") from None
        yield


def reports_folder(session: Session) -> Path | None:
    """Return the folder of reports, beside the archive; an archive in memory has none."""
    from rag_kernels.archive.store import FileArchive

    return session.archive.root / "reports" if isinstance(session.archive, FileArchive) else None


def follow(
    files: list[Path],
    session: Session,
    growth_run: GrowthRun,
    until: datetime | None,
    folder: Path | None,
    *,
    as_json: bool,
) -> tuple[list[dict[str, Any]], bool]:
    """Show what happens, and keep the report up to date; return a row for each problem that was worked on."""
    from rag_kernels.archive.records import Attempt
    from rag_kernels.long_runs.growth import Grown, grow
    from rag_kernels.report.growth_report import write_report
    from rag_kernels.report.growth_view import growth_table
    from rag_kernels.report.json_rows import attempt_row, grown_row
    from rag_kernels.report.waiting import console_of

    rows: dict[str, dict[str, Any]] = {}
    done: list[Grown] = []
    console, finished = console_of(as_json=as_json), True
    earlier = {run.problem_name: session.archive.attempts(run.id) for run in growth_run.runs.values()}
    try:
        with one_table_for_all(), growth_table(console, f"{len(files)} problems", earlier) as show:
            for event in grow(files, session, growth_run, until=until):
                if isinstance(event, Grown):
                    done.append(event)
                    rows[event.name] = grown_row(event)
                if as_json and isinstance(event, Attempt):
                    emit("attempt", attempt_row(event))
                if as_json and isinstance(event, Grown):
                    emit("problem", grown_row(event))
                if not as_json or console.is_terminal:
                    show(event)
                if folder is not None and not isinstance(event, Attempt):
                    write_report(growth_run, session, done, folder)
    except KeyboardInterrupt:
        finished = False
    for waiting in still_waiting(files, session, growth_run, {grown.name for grown in done}):
        rows[waiting.name] = grown_row(waiting) | {"state": "waiting"}
    if folder is not None:
        write_report(growth_run, session, done, folder)
    return list(rows.values()), finished


@contextmanager
def one_table_for_all() -> Iterator[None]:
    """Leave out what each run says of its own steps: without its problem's name it tells nothing beside the table."""
    runs = logging.getLogger("rag_kernels.run")
    if runs.isEnabledFor(logging.DEBUG):
        yield
        return
    before = runs.level
    runs.setLevel(logging.WARNING)
    try:
        yield
    finally:
        runs.setLevel(before)


def still_waiting(files: list[Path], session: Session, growth_run: GrowthRun, done: set[str]) -> Iterator[Grown]:
    """Yield problems that were begun, and that this growth run did not finish."""
    from rag_kernels.long_runs.growth import Grown

    by_name = {run.problem_name: run for run in growth_run.runs.values()}
    for file in files:
        if file.stem not in done and file.stem in by_name:
            yield Grown(file, file.stem, tuple(session.archive.attempts(by_name[file.stem].id)))


def show_summary(rows: list[dict[str, Any]], *, of: int, as_json: bool) -> None:
    from rag_kernels.report.console import print_table

    won = sum(1 for row in rows if row["kernel_id"])
    done = sum(1 for row in rows if row["state"] != "waiting")
    if as_json:
        emit("summary", {"problems": of, "done": done, "verified": won})
        return
    columns = {
        "problem": "problem",
        "state": "state",
        "kernel": "kernel_id",
        "vs eager": "speedup_eager",
        "vs compile": "speedup_compile",
        "candidates": "attempts",
        "seconds": "seconds",
    }
    print_table(rows, columns, ("seconds", "candidates", "state", "kernel", "vs eager"))
    print(f"{won} of {of} problems have a verified kernel.")
