"""The line of a live view that says what is being waited for, how long it has taken, and what is left.

Comes in: the messages of `eval.progress`, and attempts. Goes out: a rich renderable that tells the time by itself, and
the way in which all views that change are shown.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from rag_kernels.eval.progress import PROGRESS


class Waiting(logging.Handler):
    """Hold what goes on. As a renderable it is one line: "timing 12 s, judged 1 of 4; 31 s in all"."""

    def __init__(self, *, counts: bool = True, first: str = "starting") -> None:
        super().__init__()
        self._counts = counts
        self._spinner = Spinner("dots")
        self._what, self._since, self._began = first, monotonic(), monotonic()
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

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        room = options.max_width - 2  # beside the spinner
        text = Text(self.text())
        text.truncate(room, overflow="ellipsis")
        self._spinner.update(text=text)
        yield self._spinner


def console_of(*, as_json: bool) -> Console:
    """Return where views are shown: with JSON on stderr, and then on a terminal alone whose lines rows do not tear."""
    return Console(stderr=as_json, force_terminal=False if as_json and sys.stdout.isatty() else None)


@contextmanager
def changing(view: RenderableType, console: Console, *, per_second: float = 8, stays: bool = False) -> Iterator[Live]:
    """Show a view that changes. What is printed meanwhile stands above it; a stdout that is elsewhere is left alone."""
    with Live(
        view,
        console=console,
        refresh_per_second=per_second,
        transient=not stays,
        redirect_stdout=not console.stderr or sys.stdout.isatty(),
    ) as live:
        yield live


@contextmanager
def waiting(*, counts: bool = True, first: str = "starting") -> Iterator[Waiting]:
    """Listen for as long as the view is shown; `counts` says also how many candidates are judged."""
    line, level = Waiting(counts=counts, first=first), PROGRESS.level
    PROGRESS.addHandler(line)
    PROGRESS.setLevel(logging.DEBUG)
    propagates, PROGRESS.propagate = PROGRESS.propagate, False
    try:
        yield line
    finally:
        PROGRESS.removeHandler(line)
        PROGRESS.setLevel(level)
        PROGRESS.propagate = propagates
