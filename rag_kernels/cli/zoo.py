"""`rag-kernels zoo`: what the judge catches, and what it wrongly rejects."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rag_kernels.cli.shared.common import Json, emit, end_politely, writable_out

if TYPE_CHECKING:
    from rag_kernels.eval.records import Backend
    from rag_kernels.eval.zoo.specimen import Specimen
    from rag_kernels.zoo.runner import Seen


def zoo(
    device: Annotated[Literal["cpu", "cuda"], typer.Option("--device", help="Whose specimens to run. [cpu]")] = "cpu",
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="WORDS", help="Ideas with these words, or one idea's whole name; repeat it for several."
        ),
    ] = None,
    family: Annotated[str, typer.Option("--family", metavar="NAME", help="One family alone: forging, timing...")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="One variant of each idea, no sanitizers, no honest corpus.")
    ] = False,
    ablate: Annotated[
        bool,
        typer.Option("--ablate", help="One variant of each idea, no honest corpus; then again without each defence."),
    ] = False,
    part: Annotated[
        str, typer.Option("--part", metavar="I/N", help="One of N shares, for as many processes, GPUs or machines.")
    ] = "1/1",
    merge: Annotated[
        list[Path] | None,
        typer.Option("--merge", metavar="ROWS.jsonl", help="No run: the report of what parts printed by --json."),
    ] = None,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.md", help="Keep the tables here.")] = None,
    as_json: Json = False,
) -> None:
    """Judge a zoo of cheating kernels and of honest ones: catch rate, false rejects, cost.

    Exit code: 0 when every specimen is caught, or known to escape, and no honest kernel is rejected; else 1.

    Example: rag-kernels zoo --device cpu --quick --report zoo.md
    """
    from rag_kernels.zoo.parts import read
    from rag_kernels.zoo.report import summary, tables
    from rag_kernels.zoo.runner import chosen

    writable_out(report, (".md",))
    if merge:
        seen, text = shown(read(merge), as_json=as_json), ""
    else:
        specimens = chosen(device, only=only or (), family=family)
        if not specimens:
            raise typer.BadParameter("No specimen has these words, family and device; leave out --only to see all.")
        end_politely()
        if ablate:
            seen, text = ablation_table(device, specimens, as_json=as_json)
        else:
            corpus = not (quick or only or family)
            seen, text = judged(device, specimens, part, quick=quick, corpus=corpus, as_json=as_json), ""
    text = tables(seen) + text
    if report is not None:
        report.write_text(text + "\n")
    if as_json:
        emit("zoo_summary", summary(seen))
    else:
        print(text)
    escaped = any(s.text.kind == "specimen" and s.judged and not s.caught and not known(s.text.specimen) for s in seen)
    raise typer.Exit(1 if escaped or any(s.rejected and s.judged for s in seen) else 0)


def known(specimen: Specimen | None) -> bool:
    return specimen is not None and bool(specimen.open)


def shown(seen: Iterable[Seen], *, as_json: bool) -> list[Seen]:
    """Judge all of them, and tell each as it comes."""
    from rag_kernels.zoo.report import line, row

    kept = []
    for one in seen:
        kept.append(one)
        if as_json:
            emit("specimen", row(one))
        else:
            print(line(one), file=sys.stderr, flush=True)
    return kept


def judged(
    device: Backend, specimens: tuple[Specimen, ...], part: str, *, quick: bool, corpus: bool, as_json: bool
) -> list[Seen]:
    """Run one part of what was chosen."""
    from rag_kernels.zoo.parts import honest_corpus, share
    from rag_kernels.zoo.runner import open_zoo, run

    try:
        mine, honest = share(specimens, honest_corpus(device) if corpus else (), part)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error
    with open_zoo(device, quick=quick) as judge:
        return shown(run(judge, mine, honest, quick=quick), as_json=as_json)


def ablation_table(device: Backend, specimens: tuple[Specimen, ...], *, as_json: bool) -> tuple[list[Seen], str]:
    """Return the table of what is missed without each defence, from one variant of each idea."""
    from rag_kernels.zoo.ablation import ablate, first_run
    from rag_kernels.zoo.report import ablation

    first = shown(first_run(device, specimens), as_json=as_json)
    found = []
    for one in ablate(device, first):
        found.append(one)
        if as_json:
            missed = {"missed": list(one.missed), "instead": dict(one.instead)}
            emit("without", {"without": one.defence, "judged": one.again, **missed})
        else:
            print(f"without {one.defence}: {len(one.missed)} of {one.again} missed", file=sys.stderr, flush=True)
    return first, "\n\n" + ablation(first, found)
