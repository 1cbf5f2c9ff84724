"""Start the explorer: `python -P -m rag_kernels.app.launch ARCHIVE [--port N]`.

Comes in: the folder of an archive, or a server's address, and perhaps a port. Goes out: a Streamlit server on the
loopback address, in this process, which reads the archive before anyone asks. Knows nothing of what the pages show.
"""

from __future__ import annotations

import argparse
import sys
import threading
from pathlib import Path

import streamlit as st
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware

from rag_kernels.app import data
from rag_kernels.archive import quack

ADDRESS = "127.0.0.1"
PORT = 8501
SCRIPT = Path(__file__).with_name("explorer.py")

# What is given to `run` wins over every config file, so nothing that the user's own ~/.streamlit says can open the
# server up.
SETTINGS: dict[str, str | int | bool] = {
    "server.address": ADDRESS,
    "server.headless": True,
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": False,
    "browser.serverAddress": ADDRESS,
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
    "runner.magicEnabled": False,  # nothing here is shown by standing alone on a line
    "runner.postScriptGC": False,  # a collection goes through all lists of a large archive, after every page
}


def place_of(archive: str) -> str:
    """Return the archive's folder as a whole path, or its address."""
    return archive if quack.is_address(archive) else str(Path(archive).expanduser().resolve())


def settings(port: int | None = None) -> dict[str, str | int | bool]:
    """Return Streamlit's settings; the look comes from `.streamlit/config.toml` beside the script."""
    return {**SETTINGS, "server.port": port or PORT}


def main(archive: str, port: int | None = None) -> None:
    """Serve until Ctrl-C or a signal.

    Streamlit's scripts are sent compressed, 1 MB in place of 2.5: it leaves that to a proxy, and here is none.
    """
    place = place_of(archive)
    threading.Thread(target=data.warm, args=(place,), daemon=True).start()
    sys.argv = [str(SCRIPT), "--archive", place]  # what the script sees
    compressed = Middleware(GZipMiddleware, minimum_size=1000, compresslevel=6)
    st.App(SCRIPT, middleware=[compressed]).run(config=settings(port))


if __name__ == "__main__":
    about = "Browse a kernel archive on this machine."
    parser = argparse.ArgumentParser(prog="rag_kernels.app.launch", description=about)
    parser.add_argument("archive", help="folder of the archive, or quack://host:port")
    parser.add_argument("--port", type=int, default=None, help=f"port on {ADDRESS} (default {PORT})")
    options = parser.parse_args()
    main(options.archive, options.port)
