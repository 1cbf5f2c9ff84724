"""`rag-kernels archive serve`: one archive for a team."""

from __future__ import annotations

import sys
import time
from typing import Annotated

import typer

from rag_kernels.cli.shared.common import ArchivePlace, Json, emit, end_politely, read_settings

Host = Annotated[str, typer.Option(metavar="ADDRESS", help="Where to listen; 0.0.0.0 is everywhere.")]
Port = Annotated[int, typer.Option(min=1, max=65534, metavar="N", help="Chroma's server takes the next one.")]


def serve(
    host: Host = "127.0.0.1",
    port: Port = 9494,
    archive: ArchivePlace = None,
    as_json: Json = False,
) -> None:
    """Share an archive with other processes and machines, until Ctrl-C.

    Clients set RAG_KERNELS_ARCHIVE to the address that is printed, and RAG_KERNELS_ARCHIVE_TOKEN to the same secret as
    here. Without a secret only this machine is served.

    Example: rag-kernels archive serve --archive team
    """
    from rag_kernels.archive.quack import TOKEN, Address
    from rag_kernels.archive.serve import serving
    from rag_kernels.archive.store import FileArchive, open_archive

    settings = read_settings(archive=archive)
    store = open_archive(settings.archive or None)
    if not isinstance(store, FileArchive):
        raise typer.BadParameter("A server reads its archive from disk: --archive must name a folder.")
    address, token = Address(host, port), settings.archive_token.get_secret_value()
    end_politely()
    with serving(store.root, address, token) as server:
        at = str(Address(host, port, plain=not address.loopback))
        if as_json:
            emit("server", {"archive": str(store.root), "address": at, "token": bool(token)})
        print(f"{store.root} is served at {at} (Ctrl-C ends it). Clients: RAG_KERNELS_ARCHIVE={at}", file=sys.stderr)
        if token:
            print(f"and {TOKEN} as here.", file=sys.stderr)
        else:
            print(f"Everybody on this machine may read and write it: {TOKEN} is not set.", file=sys.stderr)
        try:
            while True:
                time.sleep(1)
                server.tend()
        except KeyboardInterrupt:
            print("The archive is closed.", file=sys.stderr)
