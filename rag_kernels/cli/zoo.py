"""`rag-kernels zoo`: what the judge catches, and what it wrongly rejects."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from rag_kernels.cli.common import Json, emit, end_politely, writable_out

if TYPE_CHECKING:
    from eval.records import Backend
    from eval.zoo.specimen import Specimen


def zoo(
    device: Annotated[Literal["cpu", "cuda"], typer.Option("--device", help="Whose specimens to run. [cpu]")] = "cpu",
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="WORDS", help="Ideas with these words; repeat it for several.")
    ] = None,
    family: Annotated[str, typer.Option("--family", metavar="NAME", help="One family alone: forging, timing...")] = "",
    quick: Annotated[
        bool, typer.Option("--quick", help="One variant of each idea, no sanitizers, no honest corpus.")
    ] = False,
    ablate: Annotated[
        bool, typer.Option("--ablate", help="Then once more without each defence: what would be missed (an hour).")
    ] = False,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE.md", help="Keep the tables here.")] = None,
    as_json: Json = False,
) -> None:
    """Judge a zoo of cheating kernels and of honest ones: catch rate, false rejects, cost.

    Exit code: 0 when every specimen is caught, or known to escape, and no honest kernel is rejected; else 1.

    Example: rag-kernels zoo --device cpu --quick --report zoo.md
    """
    from eval.zoo.honest import cuda_kernels, honest_kernels
    from rag_kernels.zoo import chosen, open_zoo, run
    from rag_kernels.zoo_report import line, row, summary, tables

    writable_out(report, (".md",))
    specimens = chosen(device, only=only or (), family=family)
    if not specimens:
        raise typer.BadParameter("No specimen has these words, family and device; leave out --only to see all.")
    end_politely()
    corpus = honest_kernels() if device == "cpu" else cuda_kernels()
    honest = [] if quick or only or family else corpus
    seen = []
    with open_zoo(device, quick=quick) as judge:
        for one in run(judge, specimens, honest, quick=quick):
            seen.append(one)
            if as_json:
                emit(row(one))
            else:
                print(line(one), file=sys.stderr, flush=True)
    text = tables(seen)
    if ablate:
        text += "\n\n" + ablation_table(device, specimens, quick=quick)
    if report is not None:
        report.write_text(text + "\n")
    if as_json:
        emit(summary(seen))
    else:
        print(text)
    escaped = any(s.text.kind == "specimen" and s.judged and not s.caught and not known(s.text.specimen) for s in seen)
    raise typer.Exit(1 if escaped or any(s.rejected and s.judged for s in seen) else 0)


def known(specimen: Specimen | None) -> bool:
    return specimen is not None and bool(specimen.open)


def ablation_table(device: Backend, specimens: tuple[Specimen, ...], *, quick: bool) -> str:
    """Run the specimens once without each defence, and say what is missed then."""
    from eval.limits import DEFENCES
    from rag_kernels.zoo import open_zoo, run
    from rag_kernels.zoo_report import ablation

    missed: dict[str, list[str]] = {}
    for defence in ("", *DEFENCES):
        with open_zoo(device, quick=quick, leave_out=defence) as judge:
            seen = list(run(judge, specimens, quick=quick))
        escaped = [s.text.name for s in seen if s.text.kind == "specimen" and not s.caught]
        missed[defence or "nothing"] = escaped
        print(f"without {defence or 'nothing'}: {len(escaped)} missed", file=sys.stderr, flush=True)
    return ablation("One defence less", missed)
