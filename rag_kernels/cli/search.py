"""`rag-kernels search`: what the archive knows that is like this."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from rag_kernels.cli.shared.busy import busy
from rag_kernels.cli.shared.common import ArchivePlace, Json, Retrieval, columns, emit, read_options


def search(
    text: Annotated[str, typer.Argument(metavar="WORDS", help="What to look for, in words.")] = "",
    problem: Annotated[
        Path | None, typer.Option("--problem", metavar="FILE", help="Look for kernels like this problem's instead.")
    ] = None,
    optimise: Annotated[
        str | None,
        typer.Option("--optimise", metavar="KERNEL", help="Look for what may speed up this archived kernel instead."),
    ] = None,
    bottleneck: Annotated[
        Literal["memory", "arithmetic", "library", "overhead"] | None,
        typer.Option("--bottleneck", help="Put kernels first that know a remedy for this."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Show how each score came about.")] = False,
    count: Annotated[int, typer.Option("--count", "-n", min=1, metavar="N", help="How many to show.")] = 10,
    retrieval: Retrieval = None,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Find archived kernels by meaning and by words, by a problem's graph, or by what holds a kernel back.

    Example: rag-kernels search "fused layernorm gelu" --explain
    """
    if sum(map(bool, (text, problem, optimise))) != 1:
        raise typer.BadParameter("Give words to look for, or --problem FILE, or --optimise KERNEL: one of the three.")
    options = read_options(archive=archive, retrieval=retrieval)
    with busy("searching"):
        from rag_kernels.options import Keywords
        from rag_kernels.report.json_rows import hit_row
        from rag_kernels.retrieval.find import find_kernels, find_remedies

        place, where = options.archive, Keywords(retrieval=options.retrieval, embedder=options.embedder)
        if optimise:
            hits = find_remedies(optimise, count=count, archive=place, **where)
        elif problem:
            from rag_kernels.api import functionalize as functionalize_file

            hits = find_kernels(functionalize_file(problem), count=count, bottleneck=bottleneck, archive=place, **where)
        else:
            hits = find_kernels(text, count=count, bottleneck=bottleneck, archive=place, **where)
        rows = [hit_row(hit) for hit in hits]
    if as_json:
        for row in rows:
            emit("hit", row)
        return
    from rag_kernels.report.search_hits import hit_text

    width = columns(sys.stdout)
    print("\n".join(hit_text(row, explain=explain, width=width) for row in rows) or "The archive has nothing like it.")
