"""Room on one GPU for the problems of several processes: each waits until the memory that it may need is free.

Comes in: a file that the processes share, and how many bytes there are for all of them. Who asked first is let in
first, so that a large problem is not kept waiting by small ones. What a process that ended had taken is free again.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WAIT_S = 0.2
Ticket = tuple[str, int, int]  # its name, the process, bytes


class Room:
    """`file` None: no bound."""

    def __init__(self, file: Path | None, total: int) -> None:
        self._file, self.total = file, total

    @contextmanager
    def taken(self, need: int) -> Iterator[None]:
        """Wait for so many bytes (at most all there are), and have them within the block."""
        if self._file is None:
            yield
            return
        name = uuid.uuid4().hex
        self._change(self._file, add=(name, os.getpid(), min(need, self.total)))
        try:
            while not self._is_in(self._file, name):
                time.sleep(WAIT_S)
            yield
        finally:
            self._change(self._file, remove=name)

    def _is_in(self, file: Path, name: str) -> bool:
        """Return whether all that asked before fit beside it."""
        tickets = self._change(file)
        place = next(i for i, ticket in enumerate(tickets) if ticket[0] == name)
        return sum(need for _, _, need in tickets[: place + 1]) <= self.total

    def _change(self, file: Path, *, add: Ticket | None = None, remove: str = "") -> list[Ticket]:
        with file.open("a+") as held:
            fcntl.flock(held, fcntl.LOCK_EX)
            held.seek(0)
            tickets: list[Ticket] = [tuple(t) for t in json.loads(held.read() or "[]")]
            tickets = [t for t in tickets if t[0] != remove and Path(f"/proc/{t[1]}").exists()]
            tickets += [add] if add else []
            held.truncate(0)
            held.write(json.dumps(tickets))
        return tickets
