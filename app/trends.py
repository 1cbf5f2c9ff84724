"""Draw many kernels, attempts and runs: axis titles with units, told apart by shape as well as by colour.

Comes in: tables made by `app.figures`. Goes out: SVG text by `app.svg`, and bars as small tables that a screen reader
can read. Knows nothing of pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import Any

import pandas as pd

from rag_kernels.app import svg, values
from rag_kernels.app.svg import BLUE, DASHES, GREEN, GREY, ORANGE, PINK, Axis, Frame, Mark, Point

OUTCOME_COLOURS = {
    "passed": GREEN,
    "compiled": BLUE,
    "wrong": ORANGE,
    "build failed": "#D55E00",
    "crashed": PINK,
    "timed out": "#B9A800",
    "rejected": GREY,
}
SINGLE = 200  # marks that are drawn one by one, each with what it is
HOUR, DAY = 3600, 86_400
STEPS_S = (300, 900, 1800, HOUR, 3 * HOUR, 6 * HOUR, 12 * HOUR, *(n * DAY for n in (1, 2, 7, 14, 30, 91, 365, 1826)))
Row = tuple[str, float, str, str]  # name, share of the longest (0 to 1), what is written at its end, colour


def bars(rows: Sequence[Row], label: str) -> str:
    """Return a bar for each row."""
    drawn = "".join(
        f'<tr><th scope="row">{escape(name)}</th><td class="rk-bar"><span style="width:{100 * min(1.0, share):.1f}%;'
        f'background:{colour}"></span></td><td>{escape(told)}</td></tr>'
        for name, share, told, colour in rows
    )
    return f'<table class="rk-bars" aria-label="{escape(label)}">{drawn}</table>'


def counts(table: pd.DataFrame, column: str, title: str) -> str:
    """Draw a bar for each value of `column`, longest first. `table` has `column` and `count`."""
    ordered = table.sort_values("count", ascending=False)
    found = [(str(name), int(count)) for name, count in zip(ordered[column], ordered["count"], strict=True)]
    return bars([(name, count / found[0][1], f"{count:,}", BLUE) for name, count in found], title)


def outcomes(table: pd.DataFrame) -> str:
    """Draw attempts by outcome. `table` has `outcome` and `count`."""
    ordered = table.sort_values("count", ascending=False)
    most = ordered["count"].max()
    return bars(
        [
            (str(name), count / most, f"{count:,}", OUTCOME_COLOURS.get(str(name), GREY))
            for name, count in zip(ordered["outcome"], ordered["count"], strict=True)
        ],
        "attempts by outcome",
    )


def burn(rows: Sequence[tuple[str, float, str]]) -> str:
    """Draw how much of each of a run's budgets is used: name, share, told."""
    return bars([(name, share, told, ORANGE if share >= 0.9 else BLUE) for name, share, told in rows], "of the budget")


def fast_p(table: pd.DataFrame) -> str:
    """Draw fast_p. `table`: threshold, share (0 to 1), baseline."""
    looks: dict[str, tuple[str, str, Mark]] = {"eager": (ORANGE, "", "line"), "torch.compile": (BLUE, DASHES, "dashes")}
    drawn = {name: looks[name] for name in looks if (table["baseline"] == name).any()}
    x = Axis("speed-up p (×)", table["threshold"].min(), table["threshold"].max(), log=True)
    y = Axis("problems faster than p", 0, 1, names=tuple((n / 4, f"{25 * n} %") for n in range(5)))
    legend = [(f"against {name}", colour, mark) for name, (colour, _, mark) in drawn.items()]
    frame = Frame("Share of the problems that are faster than p", x, y, legend)
    for name, (colour, dash, _) in drawn.items():
        of_it = table[table["baseline"] == name]
        frame.steps(list(zip(of_it["threshold"], of_it["share"], strict=True)), colour, dash=dash)
    return frame.text()


def wins(table: pd.DataFrame) -> str:
    """Draw the best speed-up of each problem over each baseline. `table`: problem, speedup_eager, speedup_compile."""
    sides: tuple[tuple[str, str, str, Mark], ...] = (
        ("speedup_eager", "over eager", ORANGE, "circle"),
        ("speedup_compile", "over torch.compile", BLUE, "square"),
    )
    ordered = table.sort_values("speedup_eager", ascending=False)
    named = [
        (
            str(row["problem"]),
            [
                Point(row[column], 0, f"{row['problem']} {told}: {values.times(row[column])}", colour, mark)
                for column, told, colour, mark in sides
                if pd.notna(row[column])
            ],
        )
        for _, row in ordered.iterrows()
    ]
    known = [1.0, *(point.x for _, points in named for point in points)]
    x = svg.axis("best speed-up (×)", known, log=True)
    return svg.rows(named, x, "Best speed-ups", [(told, colour, mark) for _, told, colour, mark in sides])


def progress(table: pd.DataFrame) -> str:
    """Draw the speed-up of each attempt and the best so far; more than one `name` gives more than one line.

    `table`: attempt, speedup (may be missing), at_least, best, outcome, name.
    """
    names = list(dict.fromkeys(table["name"]))
    several = len(names) > 1
    looks: list[tuple[str, str, Mark]] = [(GREEN if not several else BLUE, "", "circle"), (ORANGE, DASHES, "square")]
    known = table["speedup"].dropna()
    x = Axis("attempt", 0, max(2, table["attempt"].max() + 1))
    y = svg.axis("speed-up (×)", [1.0, *known], zero=True)
    legend = [(name, colour, mark) for name, (colour, _, mark) in zip(names, looks, strict=False)] if several else []
    frame = Frame("Speed-up of each attempt", x, y, legend)
    frame.level(1.0, "PyTorch")
    for name, (colour, dash, mark) in zip(names, looks, strict=False):
        mine = table[table["name"] == name]
        best = mine.dropna(subset=["best"])
        if len(best):
            frame.steps(
                [*zip(best["attempt"], best["best"], strict=True), (x.high, best["best"].iloc[-1])], colour, dash=dash
            )
        tried = mine.dropna(subset=["speedup"])
        places = list(zip(tried["attempt"], tried["speedup"], strict=True))
        if len(places) > SINGLE:
            frame.dots(f"attempts {name}".strip(), places, colour, mark)
        else:
            frame.points([_attempt(row, colour, mark) for row in tried.itertuples()])
    return frame.text()


def _attempt(row: Any, colour: str, mark: Mark) -> Point:
    """Return the mark of an attempt: a ring where nothing confirmed it."""
    told = f"attempt {row.attempt}: {values.times(row.speedup, at_least=row.at_least)}"
    return Point(row.attempt, row.speedup, told, colour, "ring" if row.at_least else mark)


def over_time(table: pd.DataFrame) -> str:
    """Draw the growth of the archive. `table`: time, kernels, wins (running totals)."""
    looks: tuple[tuple[str, str, str, str, Mark], ...] = (
        ("kernels", "kernels", BLUE, "", "line"),
        ("wins", "attempts that won", GREEN, DASHES, "dashes"),
    )
    y = svg.axis("so far", [0, *table["kernels"], *table["wins"]], zero=True)
    legend = [(told, colour, mark) for _, told, colour, _, mark in looks]
    seconds = [moment.timestamp() for moment in table["time"]]
    frame = Frame("Kernels and wins so far", _time(seconds), y, legend)
    for column, _, colour, dash, _ in looks:
        frame.steps(list(zip(seconds, table[column], strict=True)), colour, dash=dash)
    return frame.text()


def spending(table: pd.DataFrame) -> str:
    """Draw dollars so far. `table`: time, cost_usd (running total)."""
    seconds = [moment.timestamp() for moment in table["time"]]
    frame = Frame("Spent so far", _time(seconds), svg.axis("spent so far (US$)", [0, *table["cost_usd"]], zero=True))
    frame.steps(list(zip(seconds, table["cost_usd"], strict=True)), ORANGE)
    return frame.text()


def _time(seconds: Sequence[float]) -> Axis:
    """Return an axis of moments, with a few ticks at round ones."""
    low, high = seconds[0], max(seconds[-1], seconds[0] + 60)
    step = next((s for s in STEPS_S if (high - low) / s <= 5), STEPS_S[-1])
    first = int(-(-low // step))
    form = (
        "%H:%M" if high - low < DAY else "%d %b %H:%M" if step < DAY else "%d %b" if high - low < 365 * DAY else "%b %Y"
    )
    ticks = [step * n for n in range(first, int(high // step) + 1)] or [int(low)]
    names = tuple((float(tick), datetime.fromtimestamp(tick, UTC).strftime(form)) for tick in ticks)
    day = f", {datetime.fromtimestamp(low, UTC):%d %b %Y}" if high - low < DAY else ""
    return Axis(f"time (UTC{day})", low, high, names=names)


def spread(table: pd.DataFrame) -> str:
    """Draw how the speed-ups of one family are distributed. `table`: low, high (of a bin), kernels."""
    x = Axis("speed-up (×)", 0.125, 64, log=True, names=tuple((v, f"{v:g}") for v in (0.25, 1.0, 4.0, 16.0, 64.0)))
    bins = [(low, high, int(n)) for low, high, n in zip(table["low"], table["high"], table["kernels"], strict=True)]
    return svg.histogram(bins, x, "kernels", "Speed-ups of a family")
