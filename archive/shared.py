"""A database behind an archive server: `rag-kernels archive serve` on one machine, this on the others.

Comes in: an address and a token. Goes out: `read()` and `write()`, as of a file. Every statement goes to the server
whole and runs there, in a session that this process keeps, so that views, macros and transactions are the server's.
(The extension's own way, tables that look local, has neither macros nor transactions that roll back.) Values go
as literals to statements that the server has prepared.

Writers take turns: a write begins by counting up the row of `turn`, which DuckDB refuses while another transaction
has changed it. A client that dies in the middle holds its turn until the server ends its session (`archive.serve`).
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from rag_kernels.archive.connection import ended, interruptible, literal
from rag_kernels.archive.migrations import pending
from rag_kernels.archive.opening import in_memory
from rag_kernels.archive.quack import TOKEN, Address, first_line, load
from rag_kernels.archive.records import ArchiveError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

MARK = "/* rag-kernels */ "  # before each statement of a transaction: a session that ended with one was left in it
TURN = "UPDATE turn SET writes = writes + 1"
STATEMENT_S = 600  # how long one statement may take
AWAY_S = 30  # how long a server may be away between two transactions of a client
UNREACHABLE = "Could not connect"
BATCH = 1000  # rows of a file in one statement
PREPARED = 200  # statements that a session keeps prepared


class ServerSession:
    """Hold a session with a server, with what an archive uses of a connection: `execute`, its cursor, `interrupt`."""

    def __init__(self, address: Address, token: str) -> None:
        self._con = in_memory()
        self._prepared: dict[str, str] = {}
        try:
            load(self._con)
            # A statement that is sent again because its answer was slow would be done twice.
            self._con.execute("SET http_retries = 0")
            self._con.execute(f"SET http_timeout = {STATEMENT_S}")
            plain = ", DISABLE_SSL true" if address.plain else ""
            self._con.execute(f"ATTACH {literal(address.uri)} AS archive (TOKEN {literal(token)}{plain})")
        except BaseException:
            self._con.close()
            raise

    def execute(self, sql: str, parameters: Sequence[Any] | Mapping[str, Any] = ()) -> DuckDBPyConnection:
        if parameters:
            sql = f"EXECUTE {self._name(sql)}({arguments(parameters)})"
        return self._send(sql)

    def close(self) -> None:
        self._con.close()

    def write_parquet(self, select: str, file: Path) -> None:
        """Write a result to a file of this machine."""
        self._con.execute(f"COPY ({self._call(select)}) TO {literal(str(file))} (FORMAT parquet)")

    def upload(self, file: Path, like: str) -> str:
        """Send a Parquet file of this machine to a temporary table with the columns of another; return its name."""
        name = f"sent_{like}"
        self.execute(f"CREATE OR REPLACE TEMP TABLE {name} AS FROM {like} LIMIT 0")
        cursor = self._con.execute(f"FROM read_parquet({literal(str(file))})")
        columns = ", ".join(f'unnest(?) AS "{column[0]}"' for column in cursor.description)
        rows = cursor.fetchall()
        for start in range(0, len(rows), BATCH):
            values = [list(column) for column in zip(*rows[start : start + BATCH], strict=True)]
            self.execute(f"INSERT INTO {name} BY NAME SELECT {columns}", values)
        return name

    def _name(self, sql: str) -> str:
        """Return the name of the statement, prepared on the server."""
        if sql not in self._prepared:
            if len(self._prepared) == PREPARED:
                self._prepared.clear()  # the names are taken again
            name = f"s{len(self._prepared)}"
            self._send(f"PREPARE {name} AS {sql}")
            self._prepared[sql] = name
        return self._prepared[sql]

    def interrupt(self) -> None:
        self._con.interrupt()

    def _send(self, sql: str) -> DuckDBPyConnection:
        return self._con.execute(self._call(sql))

    def _call(self, sql: str) -> str:
        mark = "" if sql in ("COMMIT", "ROLLBACK") else MARK
        return f"FROM quack_query_by_name('archive', {literal(mark + sql)})"


class SharedDatabase:
    """Connect to an archive server's database. `deadline_s` bounds the wait for other clients' writes."""

    def __init__(self, address: Address, token: str, *, deadline_s: float = 90.0) -> None:
        self.address = address
        self._token = token
        self._deadline_s = deadline_s
        self._lock = threading.Lock()
        self._session: ServerSession | None = None
        self._met = False

    def __str__(self) -> str:
        return str(self.address)

    @contextmanager
    def read(self, *, stay: bool = False) -> Iterator[DuckDBPyConnection]:
        with self._lock, self._translated(), ended(cast("DuckDBPyConnection", self._begun())) as con:
            yield con

    @contextmanager
    def write(self) -> Iterator[DuckDBPyConnection]:
        with self._lock, self._translated(), ended(cast("DuckDBPyConnection", self._turn())) as con:
            yield con

    def version(self) -> str:
        """Return a text that changes with every write of any client."""
        with self.read() as con:
            return str(con.execute("SELECT writes FROM turn").fetchall()[0][0])

    def close(self) -> None:
        with self._lock:
            self._drop()

    def _begun(self) -> ServerSession:
        """Return a session in a new transaction; a new session if the old one has ended, as after a restart of the
        server.
        """
        import duckdb

        if self._session is not None:
            try:
                self._session.execute("BEGIN")
                return self._session
            except duckdb.Error:
                self._drop()
        self._session = self._connect()
        self._session.execute("BEGIN")
        return self._session

    def _connect(self) -> ServerSession:
        session = self._opened()
        steps = pending(cast("DuckDBPyConnection", session))
        if steps:
            session.close()
            raise ArchiveError(
                f"The archive at {self.address} is served by an older version of rag-kernels, which does not know the "
                f"schema step {steps[0]!r}. Upgrade it there and start `rag-kernels archive serve` again."
            )
        self._met = True
        return session

    def _opened(self) -> ServerSession:
        """Open a new session; a server that was there before is given a while to come back."""
        import duckdb

        deadline = time.monotonic() + (AWAY_S if self._met else 0)
        while True:
            try:
                return ServerSession(self.address, self._token)
            except duckdb.Error as error:
                if UNREACHABLE not in str(error) or time.monotonic() >= deadline:
                    raise
            time.sleep(0.5)

    def _turn(self) -> ServerSession:
        """Open a transaction in which nobody else can write."""
        import duckdb

        deadline = time.monotonic() + self._deadline_s
        pause = 0.005
        while True:
            session = self._begun()
            try:
                session.execute(TURN)
                return session
            except duckdb.Error as error:
                if "onflict" not in str(error):
                    raise
                session.execute("ROLLBACK")
            if time.monotonic() > deadline:
                raise ArchiveError(
                    f"Other clients have been writing to {self.address} for more than {self._deadline_s:.0f} s. "
                    "Try again; if it stays so, start `rag-kernels archive serve` anew."
                )
            time.sleep(random.uniform(0.5, 1.0) * pause)
            pause = min(2 * pause, 0.2)

    def _drop(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        """Return what the protocol says as an ArchiveError that names the next step, without the token."""
        import duckdb

        try:
            with interruptible():
                yield
        except duckdb.Error as error:
            text = first_line(error).replace(self._token, "...")
            advice = next((advice for sign, advice in ADVICE if sign in text), None)
            if advice is None:
                raise ArchiveError(f"The archive at {self.address}: {text}") from error
            raise ArchiveError(f"The archive at {self.address} {advice} ({text})") from None


ADVICE = (
    ("Authentication failed", f"refuses the token: set {TOKEN} to the one that its server was started with."),
    ("Authorization failed", "does not allow that."),
    ("Unsupported Quack version", "speaks another version of the protocol: install the DuckDB that its server has."),
    (UNREACHABLE, "does not answer: is `rag-kernels archive serve` running there? Nothing was recorded."),
    ("Failed to send message", "has gone in the middle of a statement: look there, and try again."),
    (
        "Invalid connection id",
        "has ended this session in the middle of a transaction, so that nothing of it was "
        "recorded: it was started anew, or this process stood still for long. Try again.",
    ),
    ("No space left", "has no room on its disk: free some there and try again; what was recorded before is intact."),
)


def write_parquet(con: DuckDBPyConnection | ServerSession, select: str, file: Path) -> None:
    """Write a result to a file of this machine, wherever the database is."""
    if isinstance(con, ServerSession):
        con.write_parquet(select, file)
    else:
        con.execute(f"COPY ({select}) TO {literal(str(file))} (FORMAT parquet)")


def parquet(con: DuckDBPyConnection | ServerSession, file: Path, like: str) -> str:
    """Return what FROM reads a file of this machine by, wherever the database is; it has the columns of a table."""
    return con.upload(file, like) if isinstance(con, ServerSession) else f"read_parquet({literal(str(file))})"


def arguments(parameters: Sequence[Any] | Mapping[str, Any]) -> str:
    """Return values as the arguments of EXECUTE."""
    if isinstance(parameters, Mapping):
        return ", ".join(f"{name} := {constant(value)}" for name, value in parameters.items())
    return ", ".join(map(constant, parameters))


def constant(value: Any) -> str:
    """Return a value in SQL; raises TypeError for one that SQL has no constant for.

    A number with a fraction goes as a text that is cast: 0.1 alone would be a DECIMAL.
    """
    match value:
        case None:
            return "NULL"
        case bool():
            return str(value).lower()
        case int():
            return str(value)
        case float():
            return f"'{value!r}'::DOUBLE"
        case str():
            return literal(value)
        case Mapping():
            return "{" + ", ".join(f"{literal(name)}: {constant(part)}" for name, part in value.items()) + "}"
        case [float(), *_] if all(type(part) is float for part in value):
            return f"'[{', '.join(map(repr, value))}]'::DOUBLE[]"
        case Sequence():
            return f"[{', '.join(map(constant, value))}]"
    raise TypeError(f"no SQL constant for {type(value).__name__}")
