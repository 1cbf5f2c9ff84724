"""Starts the explorer: `python -P -m app.launch ARCHIVE [--port N]`.

Comes in: the path of an archive and perhaps a port. Goes out: a Streamlit server on the loopback address.
Knows nothing of what the pages show.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import NoReturn

ADDRESS = "127.0.0.1"
PORT = 8501

# Flags win over every config file, so nothing that the user's own ~/.streamlit says can open the server up.
SETTINGS = {
    "server.address": ADDRESS,
    "server.headless": "true",
    "server.fileWatcherType": "none",
    "browser.gatherUsageStats": "false",
    "browser.serverAddress": ADDRESS,
    "client.toolbarMode": "minimal",
    "client.showErrorDetails": "none",
}


def command(archive: Path, port: int | None = None) -> list[str]:
    """Return the command line that serves this archive; the look comes from `.streamlit/config.toml` beside it."""
    script = Path(__file__).with_name("explorer.py")
    settings = {**SETTINGS, "server.port": str(port or PORT)}
    flags = [f"--{name}={value}" for name, value in settings.items()]
    # -P: a file named like one of ours in the folder where the user stands must not be imported.
    start = [sys.executable, "-P", "-m", "streamlit", "run", str(script), *flags]
    return [*start, "--", "--archive", str(archive.expanduser().resolve())]


def main(archive: Path, port: int | None = None) -> NoReturn:
    """Become the server: Ctrl-C and signals go straight to it, and its exit status is ours."""
    line = command(archive, port)
    os.execv(line[0], line)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="app.launch", description="Browse a kernel archive on this machine.")
    parser.add_argument("archive", type=Path, help="path of the archive")
    parser.add_argument("--port", type=int, default=None, help=f"port on {ADDRESS} (default {PORT})")
    options = parser.parse_args()
    main(options.archive, options.port)
