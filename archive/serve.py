"""Share an archive's folder: DuckDB behind its own protocol, Chroma behind its server.

Comes in: a folder, an address to listen on and a token. Goes out: a `Server` that runs until it is closed. Clients may
run any SQL on the archive, and nothing else: no files of this machine, no settings. A session that was left in the
middle of a transaction, by a client that was killed, is ended here. Knows nothing of what is stored.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rag_kernels.archive.connection import closing
from rag_kernels.archive.database import FileDatabase
from rag_kernels.archive.opening import CONFIG
from rag_kernels.archive.quack import OPEN_TOKEN, TOKEN, Address, first_line, load
from rag_kernels.archive.records import ArchiveError
from rag_kernels.archive.shared import MARK, STATEMENT_S, TURN
from rag_kernels.archive.store import DATABASE, INDEX

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

log = logging.getLogger(__name__)

SHORTEST_TOKEN = 16  # characters, for other machines than this one
SILENT_S = 30.0  # a session that says nothing for so long in the middle of a transaction has lost its client
QUIET_S = 10.0  # how long to wait for a moment without other transactions before it is ended
CHROMA_START_S = 60.0

# In a child, which goes when this process goes however that ends.
CHROMA = """
import ctypes, signal
ctypes.CDLL(None).prctl(1, signal.SIGTERM)
from chromadb.cli.cli import app
app()
"""

# How many sessions of ours are in the middle of a transaction, and for how many seconds one has been silent there.
UNFINISHED = f"""
    SELECT
        coalesce(max(age_s) FILTER (state <> 'active' OR age_s > {STATEMENT_S}), 0) AS silent_s,
        count(*) AS unfinished
    FROM (
        SELECT *, date_diff('millisecond', query_started_at, timezone('UTC', now())) / 1000 AS age_s
        FROM quack_active_connections()
    )
    WHERE starts_with(query, '{MARK}')
"""

SESSIONS = "SELECT count(*) FROM quack_active_connections()"


def check(address: Address, token: str) -> None:
    """Refuse, by an ArchiveError, to let other machines in without a token that cannot be guessed."""
    if not address.loopback and len(token) < SHORTEST_TOKEN:
        raise ArchiveError(
            f"Other machines can reach {address.host}, and whoever reaches it may write: set {TOKEN} to a secret of at "
            f"least {SHORTEST_TOKEN} characters (`openssl rand -hex 16` makes one), or listen on 127.0.0.1."
        )
    if 0 < len(token) < 4:
        raise ArchiveError(f"The token in {TOKEN} is too short: take at least {SHORTEST_TOKEN} characters.")


class Server:
    """Hold the database open and listen. `tend` is to be called every second or so."""

    def __init__(self, con: DuckDBPyConnection, address: Address, token: str) -> None:
        self._con = con
        self._token = token or OPEN_TOKEN
        self.address = address
        self._listen()

    def tend(self) -> bool:
        """End sessions that were left in the middle of a transaction; return whether there were any.

        The protocol can only end all sessions at once. The clients of the others connect again by themselves; so that
        no transaction of theirs is cut off, a moment is waited for in which there is none, but not for ever.
        """
        silent_s, unfinished = self._con.execute(UNFINISHED).fetchall()[0]
        if not unfinished or silent_s < SILENT_S or (unfinished > 1 and silent_s < SILENT_S + QUIET_S):
            return False
        log.warning("a client left a transaction unfinished %.0f s ago; ending all sessions to undo it", silent_s)
        self.close()
        self._listen()
        return True

    def close(self) -> None:
        """Stop listening and end every session; what is not committed is undone."""
        self._con.execute("CALL quack_stop(?)", [self.address.uri])
        deadline = time.monotonic() + QUIET_S
        while self._con.execute(SESSIONS).fetchall() != [(0,)] and time.monotonic() < deadline:
            time.sleep(0.01)

    def _listen(self) -> None:
        import duckdb

        try:
            self._con.execute(
                "CALL quack_serve(?, token := ?, allow_other_hostname := ?)",
                [self.address.uri, self._token, not self.address.loopback],
            )
        except duckdb.Error as error:
            text = first_line(error).replace(self._token, "...")
            raise ArchiveError(
                f"Nothing can listen on {self.address}: take another --port or --host. ({text})"
            ) from None


@contextmanager
def serving(root: Path, address: Address, token: str) -> Iterator[Server]:
    """Serve the archive in a folder, new or old, until the block ends; raises ArchiveError when it cannot be opened."""
    import duckdb

    check(address, token)
    database = FileDatabase(root / DATABASE)
    with database.write() as con:  # made or migrated, and free
        con.execute(TURN)  # whoever knew it before it was served: it may have changed since
    with ExitStack() as stack:
        try:
            con = stack.enter_context(closing(duckdb.connect(str(database.path), config=CONFIG)))
        except duckdb.Error as error:
            raise ArchiveError(f"{database.path} cannot be opened: {first_line(error)}") from error
        load(con)
        con.execute("SET enable_external_access = false")
        con.execute("SET lock_configuration = true")
        server = Server(con, address, token)
        stack.callback(server.close)
        stack.enter_context(chroma(root / INDEX, address.chroma_port))
        yield server


@contextmanager
def chroma(folder: Path, port: int) -> Iterator[None]:
    """Run Chroma's server over the index, on the loopback address alone: it knows no tokens."""
    _require_free(port)
    child = subprocess.Popen(
        [sys.executable, "-P", "-c", CHROMA, "run", "--path", folder, "--host", "127.0.0.1", "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "ANONYMIZED_TELEMETRY": "False"},
        start_new_session=True,  # Ctrl-C reaches us, and we end it
    )
    try:
        _wait_until_it_answers(child, port)
        yield
    finally:
        child.send_signal(signal.SIGTERM)
        try:
            child.wait(10)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _require_free(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError as error:
            raise ArchiveError(
                f"Chroma's server needs port {port}, the one after --port: take another. ({error})"
            ) from error


def _wait_until_it_answers(child: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + CHROMA_START_S
    while time.monotonic() < deadline and child.poll() is None:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v2/heartbeat", timeout=5):
                if child.poll() is None:
                    return
        except (urllib.error.URLError, OSError):
            time.sleep(0.05)
    raise ArchiveError(f"Chroma's server does not start on port {port}; `pip check` shows whether chromadb is whole.")
