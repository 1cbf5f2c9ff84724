"""Start the explorer: `python -P -m rag_kernels.app.launch ARCHIVE [--port N]`.

Comes in: the folder of an archive, or a server's address, and perhaps a port. Goes out: a Streamlit server on the
loopback address, in this process, which reads the archive before anyone asks. Knows nothing of what the pages show.
"""

from __future__ import annotations

import argparse
import threading
from pathlib import Path

from streamlit.web import cli

from rag_kernels.app import data
from rag_kernels.archive import quack

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
    "runner.magicEnabled": "false",  # nothing here is shown by standing alone on a line
    "runner.postScriptGC": "false",  # a collection goes through all lists of a large archive, after every page
}


def place_of(archive: str) -> str:
    """Return the archive's folder as a whole path, or its address."""
    return archive if quack.is_address(archive) else str(Path(archive).expanduser().resolve())


def arguments(archive: str, port: int | None = None) -> list[str]:
    """Return Streamlit's arguments; the look comes from `.streamlit/config.toml` beside the script."""
    script = Path(__file__).with_name("explorer.py")
    settings = {**SETTINGS, "server.port": str(port or PORT)}
    flags = [f"--{name}={value}" for name, value in settings.items()]
    return ["run", str(script), *flags, "--", "--archive", place_of(archive)]


def main(archive: str, port: int | None = None) -> None:
    """Serve until Ctrl-C or a signal."""
    threading.Thread(target=data.warm, args=(place_of(archive),), daemon=True).start()
    cli.main(arguments(archive, port), prog_name="streamlit")


if __name__ == "__main__":
    about = "Browse a kernel archive on this machine."
    parser = argparse.ArgumentParser(prog="rag_kernels.app.launch", description=about)
    parser.add_argument("archive", help="folder of the archive, or quack://host:port")
    parser.add_argument("--port", type=int, default=None, help=f"port on {ADDRESS} (default {PORT})")
    options = parser.parse_args()
    main(options.archive, options.port)
