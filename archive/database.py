"""Database connections: a file attached for each transaction, or one for good in memory.

Comes in: a path. Goes out: `read()` and `write()`, context managers that hand out a DuckDB connection inside a
transaction. DuckDB lets one process write a file at a time and readers need it closed, so a file is attached for each
transaction, to a DuckDB that is kept, and a lock held by another process is waited for. A second lock, `archive.lock`,
is a queue: a waiting writer holds it, so that readers who come again and again cannot keep it out. A read with `stay`
leaves the file attached for the next one, for a second, or until any other process or thread asks for it. Knows nothing
of what is stored.
"""

from __future__ import annotations

import atexit
import fcntl
import os
import random
import re
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from rag_kernels.archive.connection import literal, stopping, transaction, translated
from rag_kernels.archive.migrations import migrate, pending
from rag_kernels.archive.opening import in_memory
from rag_kernels.archive.records import ArchiveError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

Result = TypeVar("Result")

STORAGE = "v1.4.0"  # the oldest DuckDB that reads the file: from it on a write leaves alone what it does not change
TIDY = 32  # writes, one of which joins the pieces that the others left: that takes 0.1 s, and 20 ms without

STAY_S, LOOK_S = 1.0, 0.02  # how long a file stays attached for the next reader, and how soon others are noticed


@dataclass(slots=True)
class _SharedFile:
    """Hold the state of a file in this process, which may hold it open in one mode only, whoever asks."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    staying: FileDatabase | None = None  # who has left it attached
    watched: bool = False  # whether a thread looks after that


_PLACES: dict[Path, _SharedFile] = {}


@atexit.register
def _hold() -> None:
    """Wait for what DuckDB does when Python ends: to stop a thread within DuckDB would abort the process."""
    for place in _PLACES.values():
        place.lock.acquire(timeout=10)


class Database(Protocol):
    def read(self, *, stay: bool = False) -> Any: ...

    def write(self) -> Any: ...

    def version(self) -> str: ...


class MemoryDatabase:
    """A database that lives as long as this object."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writes = 0
        self._con: DuckDBPyConnection | None = None

    def __str__(self) -> str:
        return "in memory"

    @contextmanager
    def read(self, *, stay: bool = False) -> Iterator[DuckDBPyConnection]:
        with self._lock, translated("the archive in memory"):
            con = self._connection()
            with stopping(con):
                yield con

    @contextmanager
    def write(self) -> Iterator[DuckDBPyConnection]:
        with self._lock, translated("the archive in memory"):
            con = self._connection()
            with transaction(con):
                yield con
            self._writes += 1

    def version(self) -> str:
        return str(self._writes)

    def _connection(self) -> DuckDBPyConnection:
        if self._con is None:
            self._con = in_memory()
            migrate(self._con)
        return self._con


class FileDatabase:
    """Open a DuckDB file, created on first use, for each transaction."""

    def __init__(self, path: Path, *, deadline_s: float = 30.0) -> None:
        self.path = path.absolute()
        self._deadline_s = deadline_s
        self._queue = self.path.with_suffix(".lock")
        self._place = _PLACES.setdefault(self.path, _SharedFile())
        self._checked = False
        self._duckdb: DuckDBPyConnection | None = None
        self._last_read = 0.0

    def __str__(self) -> str:
        return str(self.path.parent)

    @contextmanager
    def read(self, *, stay: bool = False) -> Iterator[DuckDBPyConnection]:
        """Hand out a connection that reads. `stay`: another read comes soon, so leave the file attached."""
        with self._place.lock, translated(str(self.path)):
            if not stay:
                with self._connection(read_only=True) as con, stopping(con):
                    yield con
                return
            con = self._staying()
            try:
                with stopping(con):
                    yield con
            except BaseException:
                self._make_room()
                raise
            self._last_read = time.monotonic()

    @contextmanager
    def write(self) -> Iterator[DuckDBPyConnection]:
        with (
            self._place.lock,
            translated(str(self.path)),
            self._connection(read_only=False) as con,
            transaction(con),
        ):
            yield con

    def version(self) -> str:
        """Return a text that changes with every write, of any process; costs two looks at the folder."""
        states = []
        for path in (self.path, self.path.with_name(self.path.name + ".wal")):
            try:
                found = path.stat()
                states.append(f"{found.st_mtime_ns}-{found.st_size}")
            except FileNotFoundError:
                states.append("none")
        return "/".join(states)

    def _staying(self) -> DuckDBPyConnection:
        """Return the file as the last read left it, or attached now."""
        if self._place.staying is self and self._duckdb is not None and not self._is_asked_for():
            return self._duckdb
        self._make_room()
        if not self._checked:
            self._prepare()
        with self._turn():
            con = self._attach(self.path, read_only=True)
        self._place.staying = self
        if not self._place.watched:
            self._place.watched = True
            threading.Thread(target=_watch, args=(self._place,), daemon=True).start()
        return con

    def _make_room(self) -> None:
        """Detach the file from whoever left it attached."""
        if self._place.staying is not None:
            self._place.staying._detach()
            self._place.staying = None

    def _is_asked_for(self) -> bool:
        """Return whether another process waits for the lock."""
        try:
            with self._queue.open("a") as queue:
                fcntl.flock(queue, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        except OSError:
            pass  # a place where nobody can write
        return False

    @contextmanager
    def _connection(self, *, read_only: bool) -> Iterator[DuckDBPyConnection]:
        self._make_room()
        if not self._checked:
            self._prepare()
        with self._opened(read_only=read_only) as con:
            yield con

    @contextmanager
    def _opened(self, *, read_only: bool) -> Iterator[DuckDBPyConnection]:
        """Lock and open the file; a writer keeps the lock until it is done, a reader gives it back once it is in."""
        with ExitStack() as turn:
            turn.enter_context(self._turn())
            with self._attached(self.path, read_only=read_only) as con:
                if read_only:
                    turn.close()
                yield con

    @contextmanager
    def _attached(self, path: Path, *, read_only: bool) -> Iterator[DuckDBPyConnection]:
        con = self._attach(path, read_only=read_only)
        try:
            yield con
        finally:
            self._detach()

    def _attach(self, path: Path, *, read_only: bool) -> DuckDBPyConnection:
        """Attach the file to a DuckDB that is kept: to start one takes 10 ms, to attach a file to it 2 ms."""
        import duckdb

        con = self._duckdb = self._duckdb or in_memory()
        if not read_only:
            con.execute(f"SET max_vacuum_tasks = {0 if random.randrange(TIDY) else 100}")
        attach = f"ATTACH {literal(str(path))} AS archive"

        def attempt() -> None:
            try:
                con.execute(f"{attach} (READ_ONLY)" if read_only else f"{attach} (STORAGE_VERSION '{STORAGE}')")
            except duckdb.InvalidInputException as error:  # a newer DuckDB made it, so only newer ones read it
                if "storage version" not in str(error):
                    raise
                con.execute(attach)

        self._wait_for(attempt, (duckdb.IOException, duckdb.BinderException), locked)
        try:
            con.execute("USE archive")
        except BaseException:
            self._detach()
            raise
        return con

    def _detach(self) -> None:
        import duckdb

        con, self._duckdb = self._duckdb, None
        assert con is not None
        try:
            con.execute("USE memory")
            con.execute("DETACH archive")
            self._duckdb = con
        except duckdb.Error:  # it has given up on the file
            con.close()

    @contextmanager
    def _turn(self) -> Iterator[None]:
        try:
            queue = self._queue.open("a")
        except OSError:  # a place where nobody can write: no writer to let through
            yield
            return
        with queue:
            self._wait_for(partial(fcntl.flock, queue, fcntl.LOCK_EX | fcntl.LOCK_NB), BlockingIOError)
            yield

    def _prepare(self) -> None:
        if not self.path.exists():
            self._create()
        with self._opened(read_only=True) as con:
            steps = pending(con)
        if steps:
            with self._opened(read_only=False) as con:
                migrate(con)
        self._checked = True

    def _create(self) -> None:
        """Make the file beside its place and link it in whole: nobody ever sees half a schema."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=self.path.parent) as folder:
            fresh = Path(folder) / self.path.name
            with self._attached(fresh, read_only=False) as con:
                migrate(con)
            try:
                os.link(fresh, self.path)
            except FileExistsError:
                pass  # another process was quicker
            except OSError:  # a file system without hard links
                if not self.path.exists():
                    fresh.rename(self.path)

    def _wait_for(
        self,
        attempt: Callable[[], Result],
        busy: type[Exception] | tuple[type[Exception], ...],
        certainly: Callable[[Exception], bool] = lambda _: True,
    ) -> Result:
        """Try until it works, or until the deadline has passed."""
        deadline = time.monotonic() + self._deadline_s
        while True:
            try:
                return attempt()
            except busy as error:
                if not certainly(error):
                    raise
                if time.monotonic() > deadline:
                    raise ArchiveError(
                        f"Another process has kept {self.path} open for more than {self._deadline_s:.0f} s. "
                        f"Close it (a duckdb shell, or `archive serve`?) and try again. ({error})"
                    ) from error
            time.sleep(random.uniform(0.002, 0.006))


def _watch(place: _SharedFile) -> None:
    """Detach a file when nobody has read for a while, or when another process waits."""
    while True:
        time.sleep(LOOK_S)
        with place.lock:
            stays = place.staying
            if stays and (time.monotonic() - stays._last_read > STAY_S or stays._is_asked_for()):
                stays._make_room()
            if place.staying is None:
                place.watched = False
                return


def locked(error: Exception) -> bool:
    """Return whether another process, or another archive of this one, has the file open."""
    return re.search(r"\block\b|different configuration|already attached", str(error)) is not None  # and no block
