"""`rag-kernels report`: what runs achieved, with intervals."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rag_kernels.cli.shared.common import ArchivePlace, Json, columns, emit, read_settings, writable_out
from rag_kernels.text.wording import broken


def report(
    runs: Annotated[
        list[str],
        typer.Argument(
            metavar="RUN", help="Ids of runs, of growths, of batches, or `latest`: the newest that wrote kernels."
        ),
    ],
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Draw the figures too: .svg or .png.")
    ] = None,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Show pass@k, fast_p and fast_p@k over the problems of one or several runs, with intervals of about 95 %.

    Example: rag-kernels report latest --out report.svg
    """
    from rag_kernels.archive.store import open_archive
    from rag_kernels.experiments.scores import runs_of, scores, solved
    from rag_kernels.report.console import SCORES_TOLD, runs_text, scores_text
    from rag_kernels.report.json_rows import score_row, solved_row

    writable_out(out, (".svg", ".png"))
    store = open_archive(read_settings(archive=archive).archive or None)
    found = runs_of(store, runs)
    problems = solved(store, found)
    told = scores(problems)
    if as_json:
        for problem in problems:
            emit("solved", solved_row(problem))
        for score in told:
            emit("score", score_row(score))
    else:
        width = columns(sys.stdout)
        print(broken(runs_text(found), width, hang=0), end="\n\n")
        print(scores_text(problems, told), end="\n\n")
        print(broken(SCORES_TOLD, width, hang=0))
    if out is not None:
        from rag_kernels.report.plots import draw

        draw(told, f"{len(problems)} problem{'' if len(problems) == 1 else 's'}, {', '.join(runs)}", out)
        if not as_json:
            print(f"\nDrawn in {out}.")
    raise typer.Exit(0 if any(problem.best is not None for problem in problems) else 1)
