"""Large copies by several threads: one core moves a few GB/s.

Comes in: byte arrays. Goes out: their bytes in other memory. Memory that has been used before is worth keeping: its
pages are there already, where those of a fresh buffer cost 0.4 s a GiB, and of fresh shared memory 1 s.
"""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

from rag_kernels.eval.machine.device import threads

CHUNK = 16 << 20
PIECE = 1 << 16


def copy_bytes(target: NDArray[np.uint8], source: NDArray[np.uint8]) -> None:
    """Write all of the source to the target, which has as many bytes."""
    if len(target) <= CHUNK:
        target[:] = source
        return

    def copy(start: int) -> None:
        part = slice(start, start + CHUNK)
        target[part] = source[part]

    list(_threads().map(copy, range(0, len(target), CHUNK)))


def copied(source: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return a copy in memory of its own."""
    fresh = np.empty_like(source)
    copy_bytes(fresh, source)
    return fresh


def same_bytes(one: NDArray[np.uint8], other: NDArray[np.uint8]) -> bool:
    """Return whether two arrays hold the same bytes, a piece at a time: what is made of a whole takes new pages."""
    starts = range(0, max(len(one), len(other)), PIECE)
    return all(np.array_equal(one[start : start + PIECE], other[start : start + PIECE]) for start in starts)


@functools.cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(min(8, threads()), "copying")
