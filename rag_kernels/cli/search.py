"""`rag-kernels search`: what the archive knows that is like this."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from rag_kernels.cli.common import ArchivePlace, Json, Retrieval, emit, read_options


def search(
    text: Annotated[str, typer.Argument(metavar="WORDS", help="What to look for, in words.")] = "",
    problem: Annotated[
        Path | None, typer.Option("--problem", metavar="FILE", help="Look for kernels like this problem's instead.")
    ] = None,
    count: Annotated[int, typer.Option("--count", "-n", min=1, metavar="N", help="How many to show.")] = 10,
    retrieval: Retrieval = None,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Find archived kernels by meaning and by words.

    Example: rag-kernels search "fused layernorm gelu"
    """
    from rag_kernels.api import find_kernels
    from rag_kernels.api import functionalize as functionalize_file
    from rag_kernels.rows import kernel_row

    if bool(text) == bool(problem):
        raise typer.BadParameter("Give either words to look for or --problem FILE.")
    options = read_options(archive=archive, retrieval=retrieval)
    query = functionalize_file(problem) if problem else text
    hits = find_kernels(
        query, count=count, archive=options.archive, retrieval=options.retrieval, embedder=options.embedder
    )
    rows = [kernel_row(hit.kernel, score=round(hit.score, 4), reasons=list(hit.reasons)) for hit in hits]
    if as_json:
        for row in rows:
            emit(row)
        return
    from rag_kernels.report import hit_text

    print("\n".join(hit_text(row) for row in rows) or "The archive has nothing like it.")
