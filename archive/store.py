"""Open an archive in a folder, or behind a server: DuckDB is the truth, Chroma an index over its vectors.

Comes in: a folder, or a server's address. Goes out: an archive. Vectors go to DuckDB first and to Chroma after the
commit; Chroma proposes neighbours and DuckDB decides, so a stale or damaged index costs time, never a wrong answer. An
index that is corrupt, gone or behind is repaired here. Knows the order of things, not the SQL and not Chroma's ways.
"""

from __future__ import annotations

import functools
import logging
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from rag_kernels.archive import quack, rows
from rag_kernels.archive.database import Database, FileDatabase
from rag_kernels.archive.duck import DuckArchive, nearest, put_vectors, resolve_model
from rag_kernels.archive.index import ChromaIndex, ChromaServerIndex, IndexDamaged, Item
from rag_kernels.archive.memory import MemoryArchive
from rag_kernels.archive.protocol import Archive
from rag_kernels.archive.records import ArchiveError, KernelFilter
from rag_kernels.archive.shared import SharedDatabase

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

log = logging.getLogger(__name__)
Result = TypeVar("Result")
State = tuple[int, str | None]

DATABASE = "archive.duckdb"
INDEX = "chroma"
TOLERANCE = 1e-3  # how far Chroma's similarity may be from the exact one before the index counts as stale


def open_archive(location: str | Path | None = None) -> Archive:
    """Open the archive in a folder, behind a server for `quack://host:port`, or one in memory for `:memory:`.

    Without a location: the one named by RAG_KERNELS_ARCHIVE, or ~/.local/share/rag-kernels/archive. Nothing is read or
    written before the first use. The token for a server comes from RAG_KERNELS_ARCHIVE_TOKEN. Raises ArchiveError for
    an address that is none, or without the token that it needs.
    """
    if location is None:
        home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share")
        location = os.environ.get("RAG_KERNELS_ARCHIVE") or home / "rag-kernels" / "archive"
    if quack.is_address(str(location)):
        return shared_archive(quack.parse(str(location)), quack.token_from_environment())
    return MemoryArchive() if str(location) == ":memory:" else FileArchive(Path(location).expanduser())


def shared_archive(address: quack.Address, token: str) -> DuckArchive:
    """Open the archive behind a server; raises ArchiveError without the token that it needs.

    Chroma's server has no token, so it listens on its own machine alone: clients on others have their vectors compared
    one by one, by DuckDB on the server.
    """
    if not token and not address.loopback:
        raise ArchiveError(f"The archive at {address} needs a token: set {quack.TOKEN} to that of its server.")
    database = SharedDatabase(address, token or quack.OPEN_TOKEN)
    if not address.loopback:
        return DuckArchive(database)
    return IndexedArchive(database, ChromaServerIndex(address.host, address.chroma_port))


class IndexedArchive(DuckArchive):
    """Keep an archive with an index over its vectors."""

    def __init__(self, database: Database, index: ChromaIndex) -> None:
        super().__init__(database)
        self._index = index
        self._indexing = threading.RLock()
        self._seen: dict[str, State] = {}  # of each model, the vectors that the open index is known to hold

    def index_embeddings(self, vectors: Sequence[tuple[str, Sequence[float]]], model: str) -> None:
        with self._indexing:
            with self.database.write() as con:
                before = _state(con, model)
                put_vectors(con, vectors, model)
                after = _state(con, model)
            kernel_ids = [kernel_id for kernel_id, _ in vectors]
            self._with_index(lambda: self._index.put(model, self._items(model, kernel_ids)), lambda: None)
            if self._seen.get(model) == before:
                self._seen[model] = after

    def nearest(
        self, vector: Sequence[float], count: int, where: KernelFilter, model: str | None = None
    ) -> list[tuple[str, float]]:
        with self.database.read() as con:
            known = resolve_model(con, vector, model)
        if known is None:
            return []
        with self._indexing:
            return self._with_index(
                lambda: self._nearest(vector, count, where, known),
                lambda: super(IndexedArchive, self).nearest(vector, count, where, known),
            )

    def index_faults(self) -> list[str]:
        """Return vectors that the index lacks, keeps too long, or has otherwise; none for one that is not there yet."""
        if not self._index.there():
            return []
        with self._indexing:
            self._close()
            try:
                return [fault for model in self._models() for fault in self._faults_of(model)]
            except IndexDamaged as error:
                return [f"{INDEX}: the index is damaged ({error}); `rag-kernels archive reindex` builds it anew."]

    def catch_up(self) -> None:
        """Add vectors that the index lacks and remove those that are gone; one that is damaged is built anew."""
        if not self._index.there():
            return
        with self._indexing:
            for model in self._models():
                self._with_index(functools.partial(self._catch_up, model), lambda: None)

    def reindex(self) -> int:
        """Delete the index and build it from the table of vectors; return their number."""
        with self._indexing:
            self._seen.clear()
            self._index.clear()
            return self._fill()

    def _nearest(self, vector: Sequence[float], count: int, where: KernelFilter, model: str) -> list[tuple[str, float]]:
        wanted = max(4 * count, 64)
        self._catch_up(model)
        near = self._index.query(model, vector, wanted, backend=where.backend, tier=where.tier)
        with self.database.read() as con:
            found = nearest(con, vector, count, where, model, among=list(near))
            if len(found) < count and len(near) == wanted:  # the filter is narrower than the index knows
                return nearest(con, vector, count, where, model)
        if any(abs(near[kernel_id] - similarity) > TOLERANCE for kernel_id, similarity in found):
            raise IndexDamaged("its vectors differ from those in DuckDB")
        return found

    def _catch_up(self, model: str) -> None:
        """Add what other processes indexed and what a killed one could not; remove what is gone."""
        with self.database.read() as con:
            if self._seen.get(model) == _state(con, model):
                return
        self._close()  # an open index does not see what other processes write
        there = self._index.ids(model)  # before `known`: what others put there meanwhile was known before
        with self.database.read() as con:
            state = _state(con, model)
            known = {r[0] for r in con.execute("SELECT kernel_id FROM embeddings WHERE model = ?", [model]).fetchall()}
        self._index.put(model, self._items(model, sorted(known - there)))
        self._index.remove(model, sorted(there - known))
        self._seen[model] = state

    def _faults_of(self, model: str) -> list[str]:
        wanted = {item.kernel_id: item for item in self._items(model, None)}
        there = self._index.vectors(model)
        advice = "`rag-kernels archive reindex` mends it"
        faults = {
            "lacks": wanted.keys() - there.keys(),
            "still has": there.keys() - wanted.keys(),
            "has another vector of": {k for k in wanted.keys() & there.keys() if differ(wanted[k].vector, there[k])},
        }
        return [f"{INDEX}: it {what} {k} by {model!r}; {advice}." for what, ids in faults.items() for k in sorted(ids)]

    def _close(self) -> None:
        self._seen.clear()
        self._index.close()

    def _with_index(self, use: Callable[[], Result], otherwise: Callable[[], Result]) -> Result:
        """Use the index; if it fails open it again, if that fails rebuild it and answer without it."""
        try:
            return use()
        except IndexDamaged:
            self._close()  # another process may have rebuilt the folder that we had open
        try:
            return use()
        except IndexDamaged as error:
            self._rebuild(error)
        return otherwise()

    def _rebuild(self, error: IndexDamaged) -> None:
        self._seen.clear()
        try:
            aside = self._index.move_aside()
            log.warning("the index %s is damaged (%s); moved to %s, rebuilding it", self._index, error, aside)
            log.info("rebuilt the index with %d vectors", self._fill())
        except (IndexDamaged, OSError) as again:
            log.warning("the index cannot be rebuilt (%s); searching without it, which is slower", again)

    def _fill(self) -> int:
        total = 0
        for model in self._models():
            items = self._items(model, None)
            self._index.put(model, items)
            total += len(items)
        return total

    def _models(self) -> list[str]:
        with self.database.read() as con:
            found = con.execute("SELECT DISTINCT model FROM embeddings ORDER BY model").fetchall()
        return [str(name) for (name,) in found]

    def _items(self, model: str, kernel_ids: Sequence[str] | None) -> list[Item]:
        chosen = "true" if kernel_ids is None else "list_contains(?::VARCHAR[], e.kernel_id)"
        with self.database.read() as con:
            found = rows.query(
                con,
                "SELECT e.kernel_id, e.vector, c.backend, c.tier FROM embeddings AS e "
                f"JOIN candidates AS c ON c.id = e.kernel_id WHERE e.model = ? AND {chosen} ORDER BY e.kernel_id",
                [model] if kernel_ids is None else [model, list(kernel_ids)],
            )
        return [Item(**row) for row in found]


class FileArchive(IndexedArchive):
    """Keep an archive in a folder, which several processes may use at once.

    `deadline_s` bounds the wait for another's transaction.
    """

    def __init__(self, root: Path, *, deadline_s: float = 30.0) -> None:
        super().__init__(FileDatabase(root / DATABASE, deadline_s=deadline_s), ChromaIndex(root / INDEX))
        self.root = root


def differ(vector: Sequence[float], other: Sequence[float]) -> bool:
    """Return whether two vectors point in different directions; Chroma keeps them at unit length."""
    import numpy as np

    a, b = np.asarray(vector), np.asarray(other)
    return a.shape != b.shape or bool(a @ b < (1 - TOLERANCE) * np.linalg.norm(a) * np.linalg.norm(b))


def _state(con: DuckDBPyConnection, model: str) -> State:
    """Return how many vectors a model has and when the last was written: changes with every write."""
    row = con.execute("SELECT count(*), max(created_at) FROM embeddings WHERE model = ?", [model]).fetchall()[0]
    return int(row[0]), row[1]
