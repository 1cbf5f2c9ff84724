"""`rag-kernels app`: the explorer in a browser."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from rag_kernels.cli.shared.common import ArchivePlace, Json, emit, read_settings


def explorer(
    archive: ArchivePlace = None,
    port: Annotated[int, typer.Option(min=1, max=65535, metavar="N", help="The port on 127.0.0.1.")] = 8501,
    export: Annotated[
        Path | None,
        typer.Option("--export", metavar="FOLDER", help="Write a static site there instead: plain HTML, no scripts."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Browse the archive in a browser, on this machine only, or write it as a site for any web server.

    Example: rag-kernels app --port 8600

    Example: rag-kernels app --export site/
    """
    from rag_kernels.archive.memory import MemoryArchive
    from rag_kernels.archive.store import open_archive

    store = open_archive(read_settings(archive=archive).archive or None)
    if isinstance(store, MemoryArchive):
        raise typer.BadParameter("The explorer reads what others write: --archive must name a folder or an address.")
    if export is not None:
        command = [sys.executable, "-P", "-m", "rag_kernels.app.site", str(store), str(export)]
        os.execv(sys.executable, command + (["--json"] if as_json else []))
    url = f"http://127.0.0.1:{port}"
    if as_json:
        emit("explorer", {"url": url, "archive": str(store)})
    print(f"The explorer is at {url} (Ctrl-C ends it).", file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, "-P", "-m", "rag_kernels.app.launch", str(store), "--port", str(port)])
