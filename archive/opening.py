"""Open DuckDB in memory: how it is configured, and what a command spares itself at its start.

Comes in: nothing. Goes out: a connection. Knows nothing of archives.
"""

from __future__ import annotations

import sys
from threading import Event
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

CONFIG: dict[str, Any] = {
    "threads": 2,
    "default_block_size": "16384",  # of new files: a fifth of the size and two thirds of the time for small ones
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
}
COMMAND = Event()  # set where the whole process is a command's, so that nobody else in it uses DuckDB


def in_memory() -> DuckDBPyConnection:
    """Return a connection to a new database in memory, to which others can be attached."""
    import duckdb

    con = duckdb.connect(":memory:", config=CONFIG)
    if COMMAND.is_set() and "pandas" not in sys.modules:
        _spare_pandas(con)
    return con


def _spare_pandas(con: DuckDBPyConnection) -> None:
    """Show DuckDB a stand-in for pandas: for the first parameter of a process it imports that, which takes 0.4 s, to
    compare parameters with two of its objects. What makes data frames (`.df()`) fails afterwards.
    """
    stand_in = ModuleType("pandas")
    vars(stand_in).update(NaT=object(), NA=object())
    sys.modules["pandas"] = stand_in
    try:
        con.execute("SELECT ?", [0])
    finally:
        del sys.modules["pandas"]
