"""Indexing of attempts in a thread of its own, so that the judge need not wait for embeddings.

Comes in: attempts, and the function that indexes one. Goes out: nothing but the first error. Vectors can be made again
at any time, so what a kill cuts short is not lost. Knows nothing of vectors and archives.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

from rag_kernels.archive.records import Attempt


class BackgroundIndex:
    """Index attempts in order in one background thread."""

    def __init__(self, index: Callable[[Attempt], object]) -> None:
        self._index = index
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="index")
        self._begun: list[Future[object]] = []

    def add(self, attempt: Attempt) -> None:
        """Queue an attempt; attempts are indexed one at a time, in the order in which they were added."""
        self._begun.append(self._pool.submit(self._index, attempt))

    def finish(self) -> None:
        """Wait until all are indexed; raise the first error of the indexing function."""
        for future in self._begun:
            future.result()

    def close(self) -> None:
        """End the thread once it has indexed what was added."""
        self._pool.shutdown(wait=True)
