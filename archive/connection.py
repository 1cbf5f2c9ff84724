"""Context managers for every DuckDB connection of an archive: transactions, interrupts, and errors with advice.

Comes in: a connection, or one behind a server. Goes out: context managers around its use. Knows nothing of files.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rag_kernels.archive.records import ArchiveError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

DAMAGED = ("not a valid DuckDB database", "Serialization", "corrupt", "Could not read enough bytes")
FULL_DISK = ("No space left", "File too large", "Disk quota", "Could not write", "out of disk space")


def literal(text: str) -> str:
    """Return a text as SQL, where a parameter cannot stand or is dear: DuckDB imports pandas to look at parameters."""
    return "'" + text.replace("'", "''") + "'"


@contextmanager
def closing(con: DuckDBPyConnection) -> Iterator[DuckDBPyConnection]:
    """Close the connection also when DuckDB itself has given up on the file."""
    try:
        yield con
    finally:
        con.close()


@contextmanager
def transaction(con: DuckDBPyConnection) -> Iterator[None]:
    """Run the block in a transaction: all of it is stored, or nothing."""
    con.execute("BEGIN")
    with ended(con):
        yield


@contextmanager
def ended(con: DuckDBPyConnection) -> Iterator[DuckDBPyConnection]:
    """End the transaction that a connection is in: all of it, or nothing."""
    import duckdb

    try:
        with stopping(con):
            yield con
            con.execute("COMMIT")
    except BaseException:
        try:
            con.execute("ROLLBACK")
        except duckdb.Error:
            pass  # the failed commit has already rolled back, or a server is gone and does it by itself
        raise


@contextmanager
def stopping(con: DuckDBPyConnection) -> Iterator[None]:
    """Interrupt the query when the block ends early: DuckDB 1.5 goes on with it after Ctrl-C, and the next one
    waits.
    """
    try:
        yield
    except BaseException:
        con.interrupt()
        raise


@contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt for Ctrl-C within a query, where DuckDB makes a RuntimeError of it."""
    try:
        yield
    except RuntimeError as error:
        if isinstance(error.__cause__, KeyboardInterrupt):
            raise error.__cause__ from None
        raise


@contextmanager
def translated(place: str) -> Iterator[None]:
    """Raise what DuckDB and the operating system say as an ArchiveError that names the next step."""
    import duckdb

    try:
        with interruptible():
            yield
    except (duckdb.Error, OSError) as error:
        text = str(error)
        if any(sign in text for sign in FULL_DISK):
            advice = "There is no room to write it. Free some space and try again; what was recorded before is intact"
        elif any(sign in text or sign in text.lower() for sign in DAMAGED):
            advice = "It is damaged. Move it aside and import your last `archive export`, or start a new archive"
        elif "version number" in text:
            advice = "Another version of DuckDB wrote it. Upgrade with `pip install -U duckdb`"
        elif isinstance(error, FileExistsError | NotADirectoryError):
            advice = "A file is in its way: an archive is a folder. Name another place"
        elif isinstance(error, OSError) or "Permission denied" in text or "Read-only file system" in text:
            advice = "It cannot be used. Fix its permissions, or choose another folder"
        else:
            raise
        raise ArchiveError(f"{place}: {advice}. ({text})") from error
