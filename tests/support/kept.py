"""Judges, warm parents and archives that tests share: a start takes longer than what most tests ask of one.

Judges over the cache that all tests share, of whatever limits, share its warm parents, and so do `kept_workers`. They
are handed out as by `open_judge` and `open_workers`, and stay open until the session ends: `conftest.py` closes them.
Not for tests of what a judge or a worker does when it starts, ends or breaks.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from rag_kernels.archive.bundle import _check as check_bundle
from rag_kernels.archive.bundle import _unpack as unpack_bundle
from rag_kernels.archive.connection import closing, literal
from rag_kernels.archive.database import STORAGE
from rag_kernels.archive.migrations import MIGRATIONS, migrate, pending
from rag_kernels.archive.opening import in_memory
from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.store import FileArchive
from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.places import default_cache
from rag_kernels.eval.process.workers import Workers
from rag_kernels.eval.records import Backend
from rag_kernels.eval.sessions.session_pool import AtOtherSizes
from rag_kernels.ingest.description.embedder import Embedder, load_embedder
from rag_kernels.ingest.functional.functionalize import PRELOAD
from rag_kernels.retrieval.starter import BUNDLE, TOLD, log, stock

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

STAY_OPEN = ExitStack()
SHARED_CACHE = "TESTS_CACHE"  # not RAG_KERNELS_...: commands under test are not told


@contextmanager
def kept_judge(
    backend: Backend,
    *,
    limits: Limits | None = None,
    cache_dir: Path | None = None,
    at_other_sizes: AtOtherSizes | None = None,
) -> Iterator[LocalJudge]:
    """Open a judge, or take the one with these limits; one over a cache of its own is closed again."""
    place, limits = cache_dir or default_cache(), limits or Limits()
    if place == _shared_cache():
        with _lent(_judge(backend, limits, at_other_sizes)) as judge:
            yield judge
        return
    with open_judge(backend, limits=limits, cache_dir=place, at_other_sizes=at_other_sizes) as own:
        yield own


@contextmanager
def _lent(judge: LocalJudge) -> Iterator[LocalJudge]:
    """Lend a judge. Its sessions, of a hundred open files, stay for who asks next, but for a few judges."""
    _LENT[judge] += 1
    if judge in _RESTING:
        _RESTING.remove(judge)
    try:
        yield judge
    finally:
        _LENT[judge] -= 1
        if not _LENT[judge]:
            _RESTING.append(judge)
        while len(_RESTING) > WARM:
            _RESTING.pop(0).sessions.close()


WARM = 2
_LENT: Counter[LocalJudge] = Counter()
_RESTING: list[LocalJudge] = []


@contextmanager
def kept_workers() -> Iterator[Workers]:
    yield _first_judge("cpu", frozenset()).workers


def checked_once(path: Path, folder: Path, checked: Path) -> None:
    """Check a bundle as `archive.bundle` does, and the package's own one, which new archives are stocked with, once."""
    if path != BUNDLE:
        check_bundle(path, folder, checked)
        return
    shutil.copytree(_starter(), checked)


@cache
def _starter() -> Path:
    place = Path(STAY_OPEN.enter_context(TemporaryDirectory(prefix="starter-")))
    check_bundle(BUNDLE, unpack_bundle(BUNDLE, place), place / "checked")
    return place / "checked"


def migrated(con: DuckDBPyConnection) -> list[str]:
    """Migrate as `archive.migrations` does; a new database by a copy of one that was: a tenth of the time."""
    if pending(con) != list(MIGRATIONS):
        return migrate(con)
    with _COPIES:  # a process may attach a file once
        con.execute(f"ATTACH {literal(str(_schema()))} AS migrated (READ_ONLY)")
        [(name,)] = con.execute("SELECT current_database()").fetchall()
        con.execute(f'COPY FROM DATABASE migrated TO "{name}"')
        con.execute("DETACH migrated")
    return list(MIGRATIONS)


_COPIES = threading.Lock()


@cache
def _schema() -> Path:
    """Return a database at the newest schema, which the first process that asks makes."""

    def make(made: Path) -> None:
        with closing(in_memory()) as con:
            con.execute(f"ATTACH {literal(str(made))} AS made (STORAGE_VERSION '{STORAGE}')")
            con.execute("USE made")
            migrate(con)
            con.execute("USE memory")
            con.execute("DETACH made")

    return _made_once("schema.duckdb", make)


def _made_once(name: str, make: Callable[[Path], None]) -> Path:
    """Return a file or folder of the cache that all test processes share; the first that asks makes it."""
    place = _shared_cache() / name
    with place.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not place.exists():
            made = place.with_suffix(".new")
            make(made)
            made.rename(place)
    return place


def stocked(archive: Archive, embedder: Embedder) -> int:
    """Stock a new archive as `starter.stock` does, or put a copy of one that was stocked so where none is yet."""
    if not isinstance(archive, FileArchive) or archive.root.exists() or embedder.name != load_embedder().name:
        return stock(archive, embedder)
    archive.root.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".copy-", dir=archive.root.parent) as place:
        copied = shutil.copytree(_stocked(), Path(place) / "archive")
        try:
            copied.rename(archive.root)
        except OSError:  # another process was quicker
            return stock(archive, embedder)
    kernels = int(archive.stats()["kernels"])
    log.info(TOLD, kernels)
    return kernels


@cache
def _stocked() -> Path:
    """Return the folder of a stocked archive, which the first process that asks makes."""

    def make(made: Path) -> None:
        archive = FileArchive(made)
        stock(archive, load_embedder())
        archive._index.close()

    return _made_once("stocked", make)


def _shared_cache() -> Path:
    return Path(os.environ[SHARED_CACHE])


@cache
def _judge(backend: Backend, limits: Limits, at_other_sizes: AtOtherSizes | None) -> LocalJudge:
    first = _first_judge(backend, frozenset({"sandbox"}) & limits.without)
    return STAY_OPEN.enter_context(first.by_other_limits(limits, at_other_sizes))


@cache
def _first_judge(backend: Backend, without: frozenset[str]) -> LocalJudge:
    judge = STAY_OPEN.enter_context(open_judge(backend, limits=Limits(without=without), cache_dir=_shared_cache()))
    judge.workers.preload(*PRELOAD)  # as commands do: each child would import it
    return judge
