"""`rag-kernels report`: what runs achieved, with intervals."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag_kernels.cli.common import ArchivePlace, Json, emit, read_settings, writable_out


def report(
    runs: Annotated[list[str], typer.Argument(metavar="RUN", help="Ids of runs, of growths, of batches, or `latest`.")],
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
    from rag_kernels.report.console import scores_text
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
        print(scores_text(problems, told))
    if out is not None:
        from rag_kernels.report.plots import draw

        draw(told, f"{len(problems)} problem{'' if len(problems) == 1 else 's'}, {', '.join(runs)}", out)
        if not as_json:
            print(f"\nDrawn in {out}.")
    raise typer.Exit(0 if any(problem.best is not None for problem in problems) else 1)
