"""`rag-kernels mutate`: put small faults into honest kernels and count those that the judge does not see."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rag_kernels.cli.shared.common import Json, Seed, emit, end_politely, writable_out

if TYPE_CHECKING:
    from rag_kernels.eval.records import Backend
    from rag_kernels.mutation.originals import Original
    from rag_kernels.mutation.records import Row
    from rag_kernels.mutation.runner import Planned


def mutate(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(metavar="[FOLDER]...", help="Folders of kernels with their problems: NAME.cpp beside NAME.py."),
    ] = None,
    stock: Annotated[
        Literal["zoo", "starter", "both"] | None,
        typer.Option("--stock", help="The package's own sources to mutate. [zoo, unless folders are named]"),
    ] = None,
    device: Annotated[Literal["cpu", "cuda"], typer.Option("--device", help="Whose sources to mutate. [cpu]")] = "cpu",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="OPERATOR", help="These operators alone; repeat it.")
    ] = None,
    each: Annotated[int, typer.Option("--each", min=1, metavar="N", help="Mutants of each source.")] = 8,
    count: Annotated[
        int | None, typer.Option("--count", min=1, metavar="N", help="Stop after N witnessed mutants.")
    ] = None,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0, metavar="M", help="Start no more after M minutes.")
    ] = None,
    seed: Seed = 0,
    part: Annotated[
        str, typer.Option("--part", metavar="I/N", help="The problems of one of N shares, for as many processes.")
    ] = "1/1",
    rows: Annotated[
        Path | None,
        typer.Option(
            "--rows", metavar="FILE.jsonl", help="Keep every row here as it comes, and go on from what it has."
        ),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.md", help="Keep the tables here.")] = None,
    as_json: Json = False,
) -> None:
    """Measure the judge: mutants of honest kernels, which of them are faults, and which of these it misses.

    Exit code: 0 when every fault that a finite input shows is killed and no original is rejected; else 1.

    Example: rag-kernels mutate --minutes 10 --rows mutants.jsonl --report mutants.md
    """
    from rag_kernels.mutation.mutants import ALL
    from rag_kernels.mutation.records import read_rows
    from rag_kernels.zoo.parts import read_part

    writable_out(rows, (".jsonl",))
    writable_out(report, (".md",))
    if unknown := sorted(set(only or ()) - set(ALL)):
        raise typer.BadParameter(f"There is no operator {unknown[0]!r}; these are: {', '.join(ALL)}.")
    try:
        share = read_part(part)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    end_politely()
    known = list(read_rows(rows)) if rows is not None else []
    chosen = originals(folders or [], stock or ("" if folders else "zoo"), device)
    end = time.monotonic() + 60 * minutes if minutes is not None else None
    groups = planned(chosen, known, only=only or [], each=each, seed=seed, part=share)
    for row in tried(groups, known, device=device, seed=seed, count=count, end=end):
        known.append(row)
        if rows is not None:
            with rows.open("a") as file:
                file.write(row.line() + "\n")
        tell(row, as_json=as_json)
    tell_all(known, report, as_json=as_json)
    raise typer.Exit(0 if holds(known) else 1)


def tell(row: Row, *, as_json: bool) -> None:
    """Show a row as it comes: an object a line, or a line for readers on stderr."""
    from rag_kernels.mutation.report import line

    if as_json:
        print(row.line(), flush=True)
    else:
        print(line(row), file=sys.stderr, flush=True)


def tell_all(rows: list[Row], report: Path | None, *, as_json: bool) -> None:
    """Show the tables of all rows, and keep them where a file is named."""
    from rag_kernels.mutation.report import summary, tables

    text = tables(rows)
    if report is not None:
        report.write_text(text + "\n")
    if as_json:
        emit("mutation", summary(rows))
    else:
        print(text)


def holds(rows: list[Row]) -> bool:
    """Return whether every fault that a finite input shows was killed and no original was rejected."""
    from rag_kernels.mutation.records import KILLED
    from rag_kernels.mutation.report import is_finite, originals_of, rejected, witnessed

    left = [row for row in witnessed(rows) if is_finite(row) and row.state not in KILLED]
    return not left and not any(rejected(row) for row in originals_of(rows))


def originals(folders: list[Path], stock: str, device: Backend) -> list[Original]:
    """Return all that is to be mutated."""
    from rag_kernels.mutation.originals import folder_originals, starter_originals, zoo_originals

    stocks = {"zoo": zoo_originals, "starter": starter_originals}
    own = [read(device) for name, read in stocks.items() if stock in (name, "both")]
    return list(itertools.chain(*own, *(folder_originals(folder, device) for folder in folders)))


def planned(
    chosen: list[Original], known: list[Row], *, only: list[str], each: int, seed: int, part: tuple[int, int]
) -> list[list[Planned]]:
    """Return the originals of a part and the mutants of each, but those that have a row."""
    from rag_kernels.mutation.runner import plan

    done = frozenset(row.key for row in known)
    return plan(chosen, seed=seed, each=each, done=done, only=only, part=part)


def tried(
    groups: list[list[Planned]],
    known: list[Row],
    *,
    device: Backend,
    seed: int,
    count: int | None,
    end: float | None,
) -> Iterator[Row]:
    """Yield a row for each original and mutant of the groups, until there are enough or the time is up."""
    from rag_kernels.mutation.report import witnessed
    from rag_kernels.mutation.runner import open_mutation_judge, run

    before = list(known)

    def more() -> bool:
        enough = count is not None and len(witnessed(known)) >= count
        return not enough and (end is None or time.monotonic() < end)

    if groups and more():
        with open_mutation_judge(device) as judge:
            yield from run(judge, groups, seed=seed, known=before, more=more)
