"""Whose turn it is on a device: many processes may compute on it side by side, or one may time.

Comes in: names of what a timing takes for itself (a GPU, each core), and a folder, where a lock on a file says whose
turn it is. Who waits to time is let in before those who come to compute after it.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Literal

from rag_kernels.eval.places import default_cache
from rag_kernels.eval.records import Backend

Turn = Literal["none", "shared", "alone"]


def locks(backend: Backend, cache: Path) -> Path:
    """Return the folder of the locks; for a GPU one that all of a user's judges share, whatever cache they have, if it
    may be made. A judge that another one disturbs takes memory for slower than it is, and with it every floor.
    """
    if backend == "cuda":
        with suppress(OSError):
            default_cache().mkdir(parents=True, exist_ok=True)
            if os.access(default_cache(), os.W_OK):
                return default_cache()
    return cache


class DeviceLock:
    """One thread's way to its turns. Names are in an order that all keep to."""

    def __init__(self, names: Sequence[str], cache: Path) -> None:
        self.names, self.cache = tuple(names), cache
        self._folder = cache / "locks"
        self._held = ExitStack()
        self._turn: Turn = "none"

    @contextmanager
    def shared(self) -> Iterator[None]:
        """Compute, while others do, and nobody times."""
        self._take("shared")
        try:
            yield
        finally:
            self._take("none")

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Time, while nobody else computes. Within `shared` that turn is given up for it, and taken again after it."""
        with self._instead("alone"):
            yield

    @contextmanager
    def away(self) -> Iterator[None]:
        """Wait for somebody who takes turns too: the own one is given up meanwhile."""
        with self._instead("none"):
            yield

    def give_way(self) -> None:
        """Let somebody time who waits for it, between two pieces of work."""
        if self._turn == "shared" and any(self._is_awaited(name) for name in self.names):
            self._take("shared")

    def _is_awaited(self, name: str) -> bool:
        with (self._folder / f"{name}.gate").open("w") as gate:
            try:
                fcntl.flock(gate, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False

    @contextmanager
    def _instead(self, turn: Turn) -> Iterator[None]:
        before = self._turn
        if before in (turn, "alone"):
            yield
            return
        self._take(turn)
        try:
            yield
        finally:
            self._take(before)

    def _take(self, turn: Turn) -> None:
        self._held.close()
        self._turn = turn
        if turn == "none":
            return
        mode = fcntl.LOCK_SH if turn == "shared" else fcntl.LOCK_EX
        for name in self.names:
            self._folder.mkdir(parents=True, exist_ok=True)
            with (self._folder / f"{name}.gate").open("w") as gate:  # behind who waits, not past them
                fcntl.flock(gate, fcntl.LOCK_EX)
                lock = self._held.enter_context((self._folder / f"{name}.lock").open("w"))
                fcntl.flock(lock, mode)
