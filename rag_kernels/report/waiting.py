"""The line of a live view that says what is being waited for, how long it has taken, and what is left.

Comes in: the messages of `eval.progress`, and attempts. Goes out: a rich renderable that tells the time by itself.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.spinner import Spinner
from rich.text import Text

from rag_kernels.eval.progress import PROGRESS


class Waiting(logging.Handler):
    """Hold what goes on. As a renderable it is one line: "timing 12 s, judged 1 of 4; 31 s in all"."""

    def __init__(self, *, counts: bool = True) -> None:
        super().__init__()
        self._counts = counts
        self._spinner = Spinner("dots")
        self._what, self._since, self._began = "starting", monotonic(), monotonic()
        self._judged, self._wanted = 0, 0

    def emit(self, record: logging.LogRecord) -> None:
        """Take up what begins now."""
        self._what, self._since = record.getMessage(), monotonic()
        self._wanted = getattr(record, "wanted", self._wanted)

    def judged(self, candidates: int) -> None:
        """Take up how many candidates have a verdict."""
        self._judged = candidates

    def text(self) -> str:
        """Return the line as it is now."""
        left = f", judged {self._judged} of {max(self._wanted, self._judged)}" if self._counts and self._wanted else ""
        now = monotonic()
        return f"{self._what} {now - self._since:.0f} s{left}; {now - self._began:.0f} s in all"

    def __rich__(self) -> Spinner:
        self._spinner.update(text=Text(self.text(), no_wrap=True, overflow="ellipsis"))
        return self._spinner


@contextmanager
def waiting(*, counts: bool = True) -> Iterator[Waiting]:
    """Listen for as long as the view is shown; `counts` says also how many candidates are judged."""
    line, level = Waiting(counts=counts), PROGRESS.level
    PROGRESS.addHandler(line)
    PROGRESS.setLevel(logging.DEBUG)
    propagates, PROGRESS.propagate = PROGRESS.propagate, False
    try:
        yield line
    finally:
        PROGRESS.removeHandler(line)
        PROGRESS.setLevel(level)
        PROGRESS.propagate = propagates
