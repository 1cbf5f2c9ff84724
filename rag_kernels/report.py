"""Human output: the live table of attempts on a terminal, plain lines elsewhere, and the summaries.

Comes in: attempts and rows. Goes out: text on a rich console. The only file that formats for people.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.spinner import Spinner
from rich.table import Column, Table
from rich.text import Text

from archive.records import Attempt
from rag_kernels.rows import Row, attempt_row

VERDICT_STYLES = {"passed": "green", "compiled": "yellow"}
LINE_CHARS = 120
WIDE_CHARS = 200


@contextmanager
def attempts_table(console: Console, title: str) -> Iterator[Callable[[Attempt], None]]:
    """Hand out a function that shows an attempt: in a live table on a terminal, as a line elsewhere."""
    if not console.is_terminal:
        yield lambda attempt: console.print(attempt_line(attempt_row(attempt)), soft_wrap=True, highlight=False)
        return
    names = ("#", "verdict", "vs eager", "vs compile", "of floor", "s", "idea, or what is wrong")
    table = Table(*(Column(name, no_wrap=True) for name in names), title=escape(title), box=SIMPLE_HEAD)
    room = max(20, console.width - 66)
    waiting = Table.grid()
    waiting.add_row(table)
    waiting.add_row(Spinner("dots", "working"))
    with Live(waiting, console=console, refresh_per_second=8, transient=False) as live:

        def show(attempt: Attempt) -> None:
            row = attempt_row(attempt)
            table.add_row(
                str(row["attempt"]),
                Text(row["verdict"], VERDICT_STYLES.get(row["verdict"], "red")),
                times(row["speedup_eager"]),
                times(row["speedup_compile"]),
                percent(row["floor_fraction"]),
                f"{row['seconds']:.1f}",
                escape(shorten(detail(row), room)),
            )

        try:
            yield show
        finally:
            live.update(table)


def attempt_line(row: Row) -> str:
    """One attempt on one line."""
    head = f"{row['attempt']:>3}  {row['verdict']:<12}"
    if row["verdict"] == "passed":
        head += f"  {times(row['speedup_eager'])} eager  {times(row['speedup_compile'])} compile"
        head += f"  {percent(row['floor_fraction'])} of floor"
    return f"{head}  {row['seconds']:.1f} s  {shorten(detail(row))}"


def detail(row: Row) -> str:
    """Who wrote it and why, or what is wrong with it."""
    return f"{row['model'] or row['writer']}: {row['reason'] or row['note'] or row['idea']}"


def summary(row: Row) -> str:
    """The end of a run in a few lines; `row` is `rows.result_row`'s."""
    spent = f"{count(row['attempts'], 'candidate')} in {row['seconds']:.1f} s, {money(row['cost_usd'])}"
    if row["kernel_id"] is None:
        last = f" The last one: {row['verdict']}. {row['reason']}" if row["verdict"] else f" {row['reason']}"
        return f"No verified kernel ({spent}).{last}"
    trust = "confirmed in a fresh process" if row["confirmed"] else "verified, not confirmed"
    lines = [
        f"{row['problem']}: kernel {row['kernel_id']}, {trust}",
        f"  {times(row['speedup_eager'])} eager, {times(row['speedup_compile'])} torch.compile, "
        f"{percent(row['floor_fraction'])} of the physical floor, on {row['device_name']}",
        f"  {row['label']}, {row['tier']} tier, {row['precision']} precision, {row['writer']} writer"
        + (f" ({row['model']})" if row["model"] else ""),
        f"  {spent}; run {row['run_id']}",
    ]
    if row["exemplars"]:
        lines.append(f"  shown to the writer: {', '.join(row['exemplars'])}")
    if row["out"]:
        lines.append(f"  written to {row['out']}")
    return "\n".join(lines)


def print_table(rows: Sequence[Row], columns: dict[str, str]) -> None:
    """A table of rows on stdout; `columns` maps headings to keys. Nothing is cut where there is no terminal."""
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE_CHARS)
    made = Table(*(Column(name, no_wrap=True) for name in columns), box=SIMPLE_HEAD)
    for row in rows:
        made.add_row(*(escape(cell(row.get(key), key)) for key in columns.values()))
    console.print(made)


def hit_text(row: Row) -> str:
    """A kernel that was found, and why."""
    speed = f"{times(row['speedup_eager'])} eager, {times(row['speedup_compile'])} torch.compile"
    head = f"{row['kernel_id']}  {row['problem']}: {speed}, {row['trust']}, {row['backend']}"
    return f"{head}\n    {row['score']:.3f}  {'; '.join(row['reasons'])}"


def cell(value: Any, key: str) -> str:
    if value is None:
        return "-"
    if key.startswith("speedup"):
        return times(value)
    if key == "floor_fraction":
        return percent(value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.3g}"
    if isinstance(value, list | tuple):
        return ", ".join(str(v) for v in value)
    return str(value)


def facts(rows: Iterable[tuple[str, Any]]) -> str:
    """Names and values, one a line, aligned."""
    known = [(name, cell(value, name)) for name, value in rows]
    width = max((len(name) for name, _ in known), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in known)


def count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def times(ratio: float | None) -> str:
    return "-" if ratio is None else f"{ratio:.2f}x"


def percent(fraction: float | None) -> str:
    return "-" if fraction is None else f"{100 * fraction:.0f} %"


def money(usd: float | None) -> str:
    return "at an unknown price" if usd is None else f"${usd:.4f}" if usd else "no LLM cost"


def shorten(text: str, limit: int = LINE_CHARS) -> str:
    first = text.strip().splitlines()[0] if text.strip() else ""
    return first if len(first) <= limit else first[: limit - 1] + "…"
