"""A live view of a growth: a table of problems on a terminal, a line for each event elsewhere.

Comes in: events of `growth.grow`. Goes out: text on a rich console.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Column, Table

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import Passed, verdict_name
from rag_kernels.long_runs.growth import Grown, TurnEnded
from rag_kernels.report.console import attempt_line, summary
from rag_kernels.report.json_rows import attempt_row, grown_row
from rag_kernels.text.wording import shorten, times

Event = Attempt | TurnEnded | Grown
SHOWN = 20  # problems in the live table: those that were worked on last


@dataclass(slots=True)
class Line:
    """Hold what is shown of one problem."""

    state: str = ""
    turns: int = 0
    candidates: int = 0
    best: float | None = None
    last: str = ""


@contextmanager
def growth_table(console: Console, title: str) -> Iterator[Callable[[Event], None]]:
    """Hand out a function that shows an event."""
    if not console.is_terminal:
        yield lambda event: _print(console, event)
        return
    lines: dict[str, Line] = {}
    with Live(_table(lines, title, console), console=console, refresh_per_second=4) as live:

        def show(event: Event) -> None:
            name = _name(event)
            line = lines.pop(name, Line())
            lines[name] = _after(line, event)  # the newest is last
            live.update(_table(lines, title, console))

        yield show


def _print(console: Console, event: Event) -> None:
    if isinstance(event, TurnEnded):
        return
    if isinstance(event, Attempt):
        text = f"{_name(event)}: {attempt_line(attempt_row(event))}"
    else:
        text = summary(grown_row(event)) if not event.failure else f"{event.name}: {event.failure}"
        text = f"{event.name}: skipped, it was done before" if event.skipped else text
    console.print(text, soft_wrap=True, highlight=False, markup=False)


def _name(event: Event) -> str:
    if isinstance(event, Attempt):
        return event.problem.problem.name
    return event.entry.problem.name if isinstance(event, TurnEnded) else event.name


def _after(line: Line, event: Event) -> Line:
    if isinstance(event, Attempt):
        verdict = event.judged.verdict
        speedup = verdict.measurement.speedup if isinstance(verdict, Passed) else None
        best = max((s for s in (line.best, speedup) if s is not None), default=None)
        return Line("working", line.turns, line.candidates + 1, best, f"{verdict_name(verdict)}: {event.idea}")
    if isinstance(event, TurnEnded):
        return Line("waiting", event.entry.turns, line.candidates, line.best, event.failure or line.last)
    state = "failed" if event.failure else "skipped" if event.skipped else "done"
    return Line(state, line.turns, line.candidates, line.best, event.failure or line.last)


def _table(lines: dict[str, Line], title: str, console: Console) -> Table:
    names = ("problem", "state", "turns", "candidates", "best", "last")
    table = Table(*(Column(name, no_wrap=True) for name in names), title=escape(title), box=SIMPLE_HEAD)
    room = max(20, console.width - 70)
    for name, line in list(lines.items())[-SHOWN:]:
        cells = (name, line.state, str(line.turns), str(line.candidates), times(line.best), shorten(line.last, room))
        table.add_row(*(escape(cell) for cell in cells))
    return table
