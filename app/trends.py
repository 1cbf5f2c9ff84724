"""Charts of many kernels, attempts and runs: axis titles with units, told apart by shape as well as by colour.

Comes in: tables made by `app.data`. Goes out: Altair charts. Knows nothing of pages.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from rag_kernels.app.charts import BASELINE_SHAPES, BASELINES, BLUE, GREEN, GREY, ORANGE, PINK, Chart, height, no_gain

OUTCOME_COLOURS = {
    "passed": GREEN,
    "compiled": BLUE,
    "wrong": ORANGE,
    "build failed": "#D55E00",
    "crashed": PINK,
    "timed out": "#B9A800",
    "rejected": GREY,
}
LINES = alt.Legend(symbolType="stroke", symbolSize=300)
TIME = alt.X("time:T", title="time (UTC)", axis=alt.Axis(tickCount=6))


def fast_p(table: pd.DataFrame) -> Chart:
    """Draw fast_p. `table`: threshold, share (0 to 1), baseline."""
    return (
        alt.Chart(table)
        .mark_line(interpolate="step-before", strokeWidth=2.5)
        .encode(
            x=alt.X("threshold:Q", title="speed-up p (×)", scale=alt.Scale(type="log", nice=False)),
            y=alt.Y(
                "share:Q", title="problems faster than p", axis=alt.Axis(format="%"), scale=alt.Scale(domain=[0, 1])
            ),
            color=alt.Color("baseline:N", title="against", scale=BASELINES),
            strokeDash=alt.StrokeDash("baseline:N", title="against", scale=alt.Scale(range=[[1, 0], [6, 3]])),
            tooltip=["baseline", alt.Tooltip("threshold:Q", format=".2f"), alt.Tooltip("share:Q", format=".0%")],
        )
        .properties(height=320)
        .configure_legend(orient="top", titleOrient="left")
    )


def counts(table: pd.DataFrame, column: str, title: str) -> Chart:
    """Draw a bar for each value of `column`, longest first. `table` has `column` and `count`."""
    return (
        alt.Chart(table)
        .mark_bar(color=BLUE)
        .encode(
            x=alt.X("count:Q", title=title, axis=alt.Axis(tickMinStep=1, format="d")),
            y=alt.Y(f"{column}:N", title=None, sort="-x", axis=alt.Axis(labelLimit=200, labelOverlap=False)),
            tooltip=[column, "count"],
        )
        .properties(height=height(len(table), 30))
    )


def outcomes(table: pd.DataFrame) -> Chart:
    """Draw attempts by outcome. `table` has `outcome` and `count`."""
    scale = alt.Scale(domain=list(OUTCOME_COLOURS), range=list(OUTCOME_COLOURS.values()))
    return (
        alt.Chart(table)
        .mark_bar()
        .encode(
            x=alt.X("count:Q", title="attempts", axis=alt.Axis(tickMinStep=1, format="d")),
            y=alt.Y("outcome:N", title=None, sort="-x", axis=alt.Axis(labelOverlap=False)),
            color=alt.Color("outcome:N", scale=scale, legend=None),
            tooltip=["outcome", "count"],
        )
        .properties(height=height(len(table), 30))
    )


def wins(table: pd.DataFrame) -> Chart:
    """Draw the best speed-up of each problem over each baseline. `table`: problem, speedup_eager, speedup_compile."""
    renamed = table.rename(columns={"speedup_eager": "eager", "speedup_compile": "torch.compile"})
    wide = renamed[["problem", "eager", "torch.compile"]]
    long = wide.melt("problem", var_name="baseline", value_name="speedup").dropna()
    points = (
        alt.Chart(long)
        .mark_point(filled=True, size=80, opacity=0.9)
        .encode(
            x=alt.X(
                "speedup:Q",
                title="best speed-up over (×)",
                scale=alt.Scale(type="log", nice=False, padding=24),
            ),
            y=alt.Y("problem:N", title=None, sort="-x", axis=alt.Axis(labelLimit=140, labelOverlap=False, grid=True)),
            color=alt.Color("baseline:N", title=None, scale=BASELINES),
            shape=alt.Shape("baseline:N", title=None, scale=BASELINE_SHAPES),
            tooltip=["problem", "baseline", alt.Tooltip("speedup:Q", format=".2f")],
        )
    )
    chart = no_gain(alt.X) + points
    return chart.properties(height=height(len(table), 24) + 50).configure_legend(orient="top", titleOrient="left")


def progress(table: pd.DataFrame) -> Chart:
    """Draw the speed-up of each attempt and the best so far; more than one `name` gives more than one line.

    `table`: attempt, speedup (may be missing), best, outcome, name.
    """
    several = table["name"].nunique() > 1
    names = list(dict.fromkeys(table["name"]))
    shape: dict[str, Any] = {}
    colour: Any = alt.value(GREEN)
    if several:
        colour = alt.Color("name:N", title=None, scale=alt.Scale(domain=names, range=[GREEN, ORANGE]), legend=LINES)
        dashes = alt.Scale(domain=names, range=[[1, 0], [6, 3]])
        shape = {"strokeDash": alt.StrokeDash("name:N", title=None, scale=dashes, legend=LINES)}
    x = alt.X("attempt:Q", title="attempt", axis=alt.Axis(tickMinStep=1, format="d"))
    best = (
        alt.Chart(table.dropna(subset=["best"]))
        .mark_line(interpolate="step-after", strokeWidth=2.5)
        .encode(x=x, y=alt.Y("best:Q", title="speed-up (×)", scale=alt.Scale(zero=True)), color=colour, **shape)
    )
    points = (
        alt.Chart(table.dropna(subset=["speedup"]))
        .mark_point(filled=True, size=60)
        .encode(
            x=x,
            y="speedup:Q",
            color=colour if several else alt.value(BLUE),
            tooltip=["attempt", alt.Tooltip("speedup:Q", title="speed-up (×)", format=".2f"), "outcome"],
        )
    )
    chart = (no_gain(alt.Y) + best + points).properties(height=300)
    return chart.configure_legend(orient="top") if several else chart


def over_time(table: pd.DataFrame) -> Chart:
    """Draw the growth of the archive. `table`: time, kernels, wins (running totals)."""
    names = {"kernels": "kernels", "wins": "attempts that won"}
    long = table.rename(columns=names).melt("time", list(names.values()), var_name="what", value_name="count")
    scale = alt.Scale(domain=list(names.values()), range=[BLUE, GREEN])
    return (
        alt.Chart(long)
        .mark_line(interpolate="step-after", strokeWidth=2.5)
        .encode(
            x=TIME,
            y=alt.Y("count:Q", title="so far", axis=alt.Axis(tickMinStep=1, format="~s")),
            color=alt.Color("what:N", title=None, scale=scale),
            strokeDash=alt.StrokeDash(
                "what:N", title=None, scale=alt.Scale(domain=list(names.values()), range=[[1, 0], [6, 3]])
            ),
            tooltip=[alt.Tooltip("time:T", title="time (UTC)", format="%Y-%m-%d %H:%M"), "what", "count"],
        )
        .properties(height=300)
        .configure_legend(orient="top", titleOrient="left")
    )


def spending(table: pd.DataFrame) -> Chart:
    """Draw dollars so far. `table`: time, cost_usd (running total)."""
    return (
        alt.Chart(table)
        .mark_area(color=ORANGE, opacity=0.4, line={"color": ORANGE}, interpolate="step-after")
        .encode(
            x=TIME,
            y=alt.Y("cost_usd:Q", title="spent so far (US$)", axis=alt.Axis(format="$~f")),
            tooltip=[
                alt.Tooltip("time:T", title="time (UTC)", format="%Y-%m-%d %H:%M"),
                alt.Tooltip("cost_usd:Q", title="US$", format="$.4f"),
            ],
        )
        .properties(height=220)
    )


def burn(table: pd.DataFrame) -> Chart:
    """Draw how much of a run's budgets is used. `table`: name, percent, told."""
    return (
        alt.Chart(table)
        .mark_bar(height={"band": 0.6}, clip=True)
        .encode(
            x=alt.X("percent:Q", title="of the budget (%)", scale=alt.Scale(domain=[0, 100])),
            y=alt.Y("name:N", title=None, sort=None, axis=alt.Axis(labelOverlap=False)),
            color=alt.condition("datum.percent >= 90", alt.value(ORANGE), alt.value(BLUE)),
            tooltip=[alt.Tooltip("name:N", title="budget"), alt.Tooltip("told:N", title="used")],
        )
        .properties(height=height(len(table), 30))
    )


def spread(table: pd.DataFrame) -> Chart:
    """Draw how the speed-ups of one family are distributed. `table`: low, high (of a bin), kernels."""
    x = alt.Scale(type="log", domain=[0.125, 64], nice=False)
    bars = (
        alt.Chart(table)
        .mark_bar(color=BLUE, binSpacing=1)
        .encode(
            x=alt.X("low:Q", title="speed-up (×)", scale=x, axis=alt.Axis(values=[0.25, 1, 4, 16, 64], format="~g")),
            x2="high:Q",
            y=alt.Y("kernels:Q", title="kernels", axis=alt.Axis(tickCount=3, tickMinStep=1, format="~s")),
            y2=alt.datum(0),
            tooltip=[
                alt.Tooltip("low:Q", title="from (×)", format=".2f"),
                alt.Tooltip("high:Q", title="to (×)", format=".2f"),
                "kernels",
            ],
        )
    )
    return (bars + no_gain(alt.X)).properties(height=150)
