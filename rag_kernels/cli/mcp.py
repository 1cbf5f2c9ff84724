"""`rag-kernels mcp`: the judge, the archive and the offline writer for coding agents."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from rag_kernels.cli.shared.common import ArchivePlace, DeviceChoice, MaxAutotune, Precision, end_politely, read_options

MISSING = 'The protocol\'s package is not installed: pip install "rag-kernels[mcp]".'


def mcp(
    root: Annotated[
        Path, typer.Option("--root", metavar="FOLDER", help="Agents name problems and kernels below this folder.")
    ] = Path(),
    device: DeviceChoice = None,
    precision: Precision = "strict",
    max_autotune: MaxAutotune = False,
    archive: ArchivePlace = None,
    http: Annotated[
        int, typer.Option("--http", metavar="PORT", min=0, max=65535, help="Serve HTTP on loopback; 0: stdio.")
    ] = 0,
) -> None:
    """Serve the judge to coding agents, over the Model Context Protocol: describe, search, judge, compare, generate.

    An agent's configuration starts it with this command; it speaks on standard input and output until these close.
    Needs the extra `mcp`: pip install "rag-kernels[mcp]".

    Example: rag-kernels mcp --root . --device cuda
    """
    from importlib.util import find_spec

    from rag_kernels.eval.records import MachineError

    if find_spec("mcp") is None:
        raise MachineError(MISSING)
    from rag_kernels.agents.desk import open_desk
    from rag_kernels.agents.server import make_server

    if not root.is_dir():
        raise typer.BadParameter(f"--root {root} is no folder.")
    options = read_options(device=device, archive=archive, precision=precision, max_autotune=max_autotune)
    end_politely()
    desk = open_desk(root, options)
    try:
        server = make_server(desk)
        if http:
            print(f"Serving MCP at http://127.0.0.1:{http}/mcp (Ctrl-C ends it).", file=sys.stderr)
            server.run("streamable-http", host="127.0.0.1", port=http)
        else:
            server.run("stdio")
    except KeyboardInterrupt:
        print("The server is closed.", file=sys.stderr)
    finally:
        desk.close()
