"""A live view of a growth: a table of problems on a terminal, a line for each event elsewhere.

Comes in: events of `growth.grow`. Goes out: text on a rich console.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.markup import escape
from rich.table import Column, Table

from rag_kernels.archive.records import Attempt
from rag_kernels.eval.records import verdict_name
from rag_kernels.eval.told import told
from rag_kernels.long_runs.growth import Grown, TurnEnded
from rag_kernels.report.columns import GAP, fitting
from rag_kernels.report.console import attempt_line, summary
from rag_kernels.report.json_rows import attempt_row, grown_row
from rag_kernels.report.waiting import changing, waiting
from rag_kernels.run.standings import winner
from rag_kernels.text.wording import shorten, times

Event = Attempt | TurnEnded | Grown
WIDTHS = {"state": 7, "turns": 5, "candidates": 10, "best": 7, "last": 24}
DROPPABLE = ("turns", "candidates", "last")  # the first says least
SHOWN = 20  # problems in the live table: those that were worked on last


@dataclass(slots=True)
class Line:
    """Hold what is shown of one problem."""

    state: str = ""
    turns: int = 0
    attempts: tuple[Attempt, ...] = ()
    last: str = ""

    @property
    def candidates(self) -> int:
        """Return how many there were; a confirmation is none of its own."""
        return len({attempt.candidate.id for attempt in self.attempts})

    @property
    def best(self) -> str:
        """Return what is told of the best kernel: the end says the same."""
        best = winner(self.attempts)
        said = told(best.judged) if best else None
        return times(said.speedup, at_least=not said.confirmed) if said else "-"


@contextmanager
def growth_table(
    console: Console, title: str, earlier: Mapping[str, Sequence[Attempt]]
) -> Iterator[Callable[[Event], None]]:
    """Hand out a function that shows an event. `earlier` are attempts of problems that the growth worked on before."""
    if not console.is_terminal:
        yield lambda event: _print(console, event)
        return
    lines: dict[str, Line] = {}
    with (
        waiting(counts=False) as now,
        changing(Group(_table(lines, title, console), now), console, per_second=4, stays=True) as live,
    ):

        def show(event: Event) -> None:
            name = _name(event)
            line = lines.pop(name, Line(attempts=tuple(earlier.get(name, ()))))
            lines[name] = _after(line, event)  # the newest is last
            live.update(Group(_table(lines, title, console), now))

        try:
            yield show
        finally:
            live.update(_table(lines, title, console))


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
        last = f"{verdict_name(event.judged.verdict)}: {event.idea}"
        return Line("working", line.turns, (*line.attempts, event), last)
    if isinstance(event, TurnEnded):
        return Line("waiting", event.entry.turns, line.attempts, event.failure or line.last)
    state = "failed" if event.failure else "skipped" if event.skipped else "done"
    return Line(state, line.turns, event.attempts or line.attempts, event.failure or line.last)


def _table(lines: dict[str, Line], title: str, console: Console) -> Table:
    shown = list(lines.items())[-SHOWN:]
    widths = {"problem": max([7, *(len(name) for name, _ in shown)]), **WIDTHS}
    kept = fitting(widths, DROPPABLE, console.width)
    room = console.width - sum(widths[name] + GAP for name in kept if name != "last") - GAP - 1
    table = Table(*(Column(name, no_wrap=True) for name in kept), title=escape(title), box=SIMPLE_HEAD)
    for name, line in shown:
        cells = (name, line.state, str(line.turns), str(line.candidates), line.best, shorten(line.last, room))
        named = dict(zip(widths, cells, strict=True))
        table.add_row(*(escape(named[each]) for each in kept))
    return table
