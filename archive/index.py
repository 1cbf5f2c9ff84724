"""The vector index: a Chroma folder, or a Chroma server, with one collection per embedding model.

Comes in: vectors with the two facts that queries filter by. Goes out: kernel ids with cosine similarity. It is a copy
of the table `embeddings` and may be thrown away at any time: whatever goes wrong here is reported as `IndexDamaged`,
and `archive.store` rebuilds it. Chroma is imported on first use; nothing is ever downloaded or reported home. Knows
nothing of DuckDB.
"""

from __future__ import annotations

import fcntl
import logging
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from rag_kernels.eval.errors import Internal
from rag_kernels.eval.ids import content_id

if TYPE_CHECKING:
    from chromadb import Collection
    from chromadb.api.client import Client

log = logging.getLogger(__name__)
Result = TypeVar("Result")

BATCH = 2000  # Chroma refuses more than about 5,400 at once
BUSY_S = 10.0  # how long to wait while another process writes


@dataclass(frozen=True, slots=True)
class Item:
    """Hold a kernel's vector with what queries filter by; both facts are part of the kernel's id and never change."""

    kernel_id: str
    vector: Sequence[float]
    backend: str
    tier: str


class IndexDamaged(Internal):
    """The folder is corrupt, gone, or was replaced by another process: open it again, or rebuild it."""


class ChromaIndex:
    """Keep vectors in a Chroma folder, opened on first use. Every method may raise `IndexDamaged`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.absolute()
        self._client: Client | None = None
        self._collections: dict[str, Collection] = {}

    def __str__(self) -> str:
        return str(self.folder)

    def there(self) -> bool:
        return self.folder.exists()

    def put(self, model: str, items: Sequence[Item]) -> None:
        """Add or replace vectors."""
        if not items:
            return
        collection = self._collection(model)
        with self._exclusive():
            for start in range(0, len(items), BATCH):
                part = items[start : start + BATCH]
                vectors: Any = [list(item.vector) for item in part]
                ids = [item.kernel_id for item in part]
                facts: Any = [{"backend": item.backend, "tier": item.tier} for item in part]
                guarded(partial(collection.upsert, ids=ids, embeddings=vectors, metadatas=facts))

    def query(
        self, model: str, vector: Sequence[float], count: int, *, backend: str | None, tier: str | None
    ) -> dict[str, float]:
        """Return the `count` nearest kernels of a backend and tier with their similarity, best first."""
        facts = [{name: value} for name, value in (("backend", backend), ("tier", tier)) if value is not None]
        where: Any = {"$and": facts} if len(facts) > 1 else facts[0] if facts else None
        query: Any = [list(vector)]
        collection = self._collection(model)
        found = guarded(
            lambda: collection.query(query_embeddings=query, n_results=count, where=where, include=["distances"])
        )
        distances = found["distances"] or [[]]
        return {name: 1.0 - distance for name, distance in zip(found["ids"][0], distances[0], strict=True)}

    def ids(self, model: str) -> set[str]:
        """Return the id of every kernel of a collection."""
        collection = self._collection(model)
        return set(guarded(lambda: collection.get(include=[]))["ids"])

    def vectors(self, model: str) -> dict[str, Sequence[float]]:
        """Return every vector of a collection by kernel id."""
        collection = self._collection(model)
        found = guarded(lambda: collection.get(include=["embeddings"]))
        vectors: Any = found["embeddings"]
        return dict(zip(found["ids"], vectors, strict=True))

    def remove(self, model: str, kernel_ids: Sequence[str]) -> None:
        collection = self._collection(model)
        with self._exclusive():
            for start in range(0, len(kernel_ids), BATCH):
                part = list(kernel_ids[start : start + BATCH])
                guarded(partial(collection.delete, ids=part))

    def close(self) -> None:
        """Close the folder; the next call opens it again."""
        client, self._client = self._client, None
        self._collections.clear()
        if "chromadb" not in sys.modules:
            return
        from chromadb.api.shared_system_client import SharedSystemClient

        try:
            if client is not None:
                guarded(client.close)
        except IndexDamaged as error:
            log.info("closing the damaged index: %s", error)
        SharedSystemClient.clear_system_cache()  # else a client of the folder as it was may come back

    def clear(self) -> None:
        """Delete the folder."""
        self.close()
        with self._exclusive():
            shutil.rmtree(self.folder, ignore_errors=True)

    def move_aside(self) -> Path | None:
        """Move a damaged folder out of the way and return where it went; None when there is none."""
        self.close()
        with self._exclusive():
            if not self.folder.exists():
                return None
            aside = self.folder.with_name(f"{self.folder.name}.damaged-{time.time_ns()}")
            self.folder.rename(aside)
            return aside

    def _collection(self, model: str) -> Collection:
        if model not in self._collections:
            client = self._open()
            with self._exclusive():
                self._collections[model] = guarded(
                    lambda: client.get_or_create_collection(
                        content_id("m", model),
                        embedding_function=None,
                        configuration={"hnsw": {"space": "cosine"}},
                        metadata={"model": model},
                    )
                )
        return self._collections[model]

    def _open(self) -> Client:
        if self._client is None:
            import chromadb
            from chromadb.config import Settings

            self.folder.parent.mkdir(parents=True, exist_ok=True)
            settings = Settings(anonymized_telemetry=False)
            with self._exclusive():
                made = guarded(lambda: chromadb.PersistentClient(str(self.folder), settings=settings))
            self._client = cast("Client", made)
        return self._client

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        """Lock the folder: one process at a time creates, writes or moves it."""
        with self.folder.with_name(self.folder.name + ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


class ChromaServerIndex(ChromaIndex):
    """Keep vectors behind Chroma's server, which sees to it that only one client writes at a time."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(Path(os.devnull))
        self.host, self.port = host, port

    def __str__(self) -> str:
        return f"http://{self.host}:{self.port}"

    def there(self) -> bool:
        return True

    def clear(self) -> None:
        """Delete all collections."""
        self.close()
        client = self._open()
        for collection in guarded(client.list_collections):
            guarded(partial(client.delete_collection, collection.name))

    def move_aside(self) -> None:
        self.clear()

    def _open(self) -> Client:
        if self._client is None:
            import chromadb
            from chromadb.config import Settings

            settings = Settings(anonymized_telemetry=False)
            made = guarded(lambda: chromadb.HttpClient(self.host, self.port, settings=settings))
            self._client = cast("Client", made)
        return self._client

    @contextmanager
    def _exclusive(self) -> Iterator[None]:
        yield


def guarded(call: Callable[[], Result]) -> Result:
    """Call into Chroma: wait while it is busy, and raise every other failure as `IndexDamaged`.

    Chroma's Rust core panics with an exception that is no `Exception`, hence the wide net.
    """
    deadline = time.monotonic() + BUSY_S
    while True:
        try:
            return call()
        except (KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:
            busy = "locked" in str(error) or "busy" in str(error).lower()
            if not busy or time.monotonic() > deadline:
                raise IndexDamaged(f"{type(error).__name__}: {error}") from cast(Exception, error)
        time.sleep(0.02)
