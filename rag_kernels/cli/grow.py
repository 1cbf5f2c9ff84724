"""`rag-kernels grow`: fill the archive from many problems."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from rag_kernels.cli.common import (
    ApiBase,
    ArchivePlace,
    BudgetSeconds,
    BudgetTokens,
    BudgetUsd,
    DeviceChoice,
    Drafts,
    Effort,
    Examples,
    Hint,
    Json,
    LeaveOut,
    MaxAutotune,
    Model,
    Precision,
    ReasoningEffort,
    Retrieval,
    Rounds,
    Seed,
    Temperature,
    emit,
    end_politely,
    read_options,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from archive.records import Attempt
    from rag_kernels.growth import Grown


def grow(
    paths: Annotated[list[Path], typer.Argument(metavar="PATH", help="Folders of KernelBench files, or files.")],
    until: Annotated[
        str | None, typer.Option("--until", metavar="HH:MM", help="Start nothing after this time.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with the last growth over the same problems.")
    ] = False,
    model: Model = None,
    device: DeviceChoice = None,
    hint: Hint = "",
    effort: Effort = None,
    rounds: Rounds = None,
    drafts: Drafts = None,
    temperature: Temperature = None,
    reasoning_effort: ReasoningEffort = None,
    examples: Examples = None,
    retrieval: Retrieval = None,
    leave_out: LeaveOut = "nothing",
    precision: Precision = "strict",
    max_autotune: MaxAutotune = False,
    budget_usd: BudgetUsd = None,
    budget_seconds: BudgetSeconds = None,
    budget_tokens: BudgetTokens = None,
    archive: ArchivePlace = None,
    seed: Seed = 0,
    api_base: ApiBase = None,
    as_json: Json = False,
) -> None:
    """Generate kernels for problem after problem; budgets are for each. It may be killed and resumed.

    Example: rag-kernels grow problems/ --until 07:00 --resume
    """
    options = read_options(
        models=model, device=device, hint=hint, effort=effort, rounds=rounds, examples=examples, retrieval=retrieval,
        leave_out=leave_out, budget_usd=budget_usd, budget_seconds=budget_seconds, budget_tokens=budget_tokens,
        archive=archive, seed=seed, api_base=api_base, precision=precision, max_autotune=max_autotune,
        drafts=drafts, temperatures=temperature, reasoning_effort=reasoning_effort,
    )  # fmt: skip
    from eval.problem import find_problems
    from eval.records import ProblemError
    from rag_kernels.api import open_session
    from rag_kernels.growth import grow as grow_all
    from rag_kernels.growth import next_time

    try:
        deadline = next_time(until) if until else None
    except ValueError as error:
        raise typer.BadParameter(f"--until {until} is no time of day: write it as HH:MM, for example 07:00.") from error
    files = find_problems(paths)
    missing = [str(f) for f in files if not f.is_file()]
    if missing or not files:
        raise ProblemError(f"There are no problem files in {', '.join(missing or map(str, paths))}; check the path.")
    end_politely()
    with open_session(options) as session:
        rows, finished = follow(grow_all(files, session, until=deadline, resume=resume), as_json=as_json)
    show_summary(rows, of=len(files), as_json=as_json)
    if not finished:
        print("Interrupted; go on with the same command and --resume.", file=sys.stderr)
        raise typer.Exit(130)
    raise typer.Exit(0 if any(row["kernel_id"] for row in rows) else 1)


def follow(events: Iterator[Attempt | Grown], *, as_json: bool) -> tuple[list[dict[str, Any]], bool]:
    """Show attempts and finished problems as they come; return a row a problem."""
    from archive.records import Attempt
    from rag_kernels.report import attempt_line, summary
    from rag_kernels.rows import attempt_row, grown_row

    rows: list[dict[str, Any]] = []
    try:
        for event in events:
            if isinstance(event, Attempt):
                row, text = attempt_row(event), f"{event.problem.problem.name}: {attempt_line(attempt_row(event))}"
            else:
                row = grown_row(event)
                rows.append(row)
                text = summary(row)
            if as_json:
                emit(row)
            else:
                print(text, flush=True)
    except KeyboardInterrupt:
        return rows, False
    return rows, True


def show_summary(rows: list[dict[str, Any]], *, of: int, as_json: bool) -> None:
    from rag_kernels.report import print_table

    won = sum(1 for row in rows if row["kernel_id"])
    if as_json:
        emit({"type": "summary", "problems": of, "done": len(rows), "verified": won})
        return
    columns = {"problem": "problem", "state": "state", "kernel": "kernel_id", "vs eager": "speedup_eager",
               "vs compile": "speedup_compile", "candidates": "attempts", "seconds": "seconds"}  # fmt: skip
    print_table(rows, columns)
    print(f"{won} of {of} problems have a verified kernel.")
