"""The pictures: every chart has axis titles with units and is told apart by shape as well as by colour.

Comes in: tables made by `app.data`, or a measurement. Goes out: Altair charts. Knows nothing of pages.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from eval.records import Device, Features, Measurement

BLUE, ORANGE, GREEN, PINK, GREY = "#3A8FCB", "#E69F00", "#009E73", "#CC79A7", "#8C8C8C"
OUTCOME_COLOURS = {
    "passed": GREEN,
    "compiled": BLUE,
    "wrong": ORANGE,
    "build failed": "#D55E00",
    "crashed": PINK,
    "timed out": "#B9A800",
    "rejected": GREY,
}
BASELINES = alt.Scale(domain=["eager", "torch.compile"], range=[ORANGE, BLUE])
BASELINE_SHAPES = alt.Scale(domain=["eager", "torch.compile"], range=["circle", "square"])

Chart = Any  # Altair ships no usable types for layered charts


def timing_bars(m: Measurement) -> Chart:
    """One bar each for this kernel, the baselines and the physical floor."""
    rows = [("physical floor", m.floor_us), ("this kernel", m.candidate_us), ("eager", m.eager_us)]
    if m.compile_us is not None:
        rows.append(("torch.compile", m.compile_us))
    unit, scale = _time_unit(max(us for _, us in rows))
    table = pd.DataFrame([(name, us / scale) for name, us in rows], columns=["what", "time"])
    base = alt.Chart(table).encode(
        x=alt.X("time:Q", title=f"time per call ({unit})", scale=alt.Scale(zero=True)),
        y=alt.Y("what:N", title=None, sort=[name for name, _ in rows]),
        tooltip=[alt.Tooltip("what:N", title="what"), alt.Tooltip("time:Q", title=f"time ({unit})", format=".4~g")],
    )
    domain, colours = ["physical floor", "this kernel", "eager", "torch.compile"], [GREY, GREEN, ORANGE, BLUE]
    bars = base.mark_bar(height={"band": 0.6}).encode(
        color=alt.Color("what:N", scale=alt.Scale(domain=domain, range=colours), legend=None)
    )
    return bars.properties(height=_height(len(rows), 34))


def speedup_intervals(m: Measurement) -> Chart:
    """The median speed-up over each baseline with its interval, beside the line of no gain."""
    rows = [("eager", m.speedup_eager.low, m.speedup_eager.median, m.speedup_eager.high)]
    if m.speedup_compile is not None:
        r = m.speedup_compile
        rows.append(("torch.compile", r.low, r.median, r.high))
    table = pd.DataFrame(rows, columns=["baseline", "low", "median", "high"])
    x = alt.Scale(zero=False, padding=20)
    base = alt.Chart(table).encode(y=alt.Y("baseline:N", title=None))
    interval = base.mark_rule(strokeWidth=3).encode(x=alt.X("low:Q", title="speed-up (×)", scale=x), x2="high:Q")
    points = base.mark_point(filled=True, size=110, opacity=1).encode(
        x=alt.X("median:Q", scale=x),
        shape=alt.Shape("baseline:N", scale=BASELINE_SHAPES, legend=None),
        tooltip=["baseline", *(alt.Tooltip(f"{c}:Q", format=".3f") for c in ("low", "median", "high"))],
    )
    coloured = (interval + points).encode(color=alt.Color("baseline:N", scale=BASELINES, legend=None))
    return (_one(alt.X) + coloured).properties(height=_height(len(rows), 40))


def has_roofline(device: Device, features: Features) -> bool:
    work = features.flops + features.pointwise_flops
    return min(work, features.bytes_moved, device.bandwidth_gbs, device.fp32_gflops) > 0


def roofline(device: Device, features: Features, m: Measurement) -> Chart:
    """The device's roof with this problem's arithmetic intensity, and where the kernel and eager stand under it."""
    work = features.flops + features.pointwise_flops
    intensity = work / features.bytes_moved
    ridge = device.fp32_gflops / device.bandwidth_gbs
    span = sorted((min(intensity, ridge) / 8, max(intensity, ridge) * 8))
    roof = pd.DataFrame(
        [(i, min(i * device.bandwidth_gbs, device.fp32_gflops)) for i in (span[0], ridge, span[1])],
        columns=["intensity", "gflops"],
    )
    points = [("this kernel", m.candidate_us), ("eager", m.eager_us), ("torch.compile", m.compile_us)]
    table = pd.DataFrame(
        [(name, intensity, work / us / 1e3) for name, us in points if us is not None],
        columns=["what", "intensity", "gflops"],
    )
    log, few = alt.Scale(type="log", nice=False, padding=12), alt.Axis(tickCount=6, grid=False)
    x = alt.X("intensity:Q", title="arithmetic intensity (FLOP per byte)", scale=log, axis=few)
    y = alt.Y("gflops:Q", title="rate (GFLOP/s)", scale=log, axis=few)
    names, looks = ["this kernel", "eager", "torch.compile"], ["diamond", "circle", "square"]
    line = alt.Chart(roof).mark_line(color=GREY, strokeWidth=2).encode(x=x, y=y)
    marks = (
        alt.Chart(table)
        .mark_point(filled=True, size=130, opacity=1)
        .encode(
            x=x,
            y=y,
            color=alt.Color("what:N", title=None, scale=alt.Scale(domain=names, range=[GREEN, ORANGE, BLUE])),
            shape=alt.Shape("what:N", title=None, scale=alt.Scale(domain=names, range=looks)),
            tooltip=["what", alt.Tooltip("gflops:Q", title="GFLOP/s", format=".4~g")],
        )
    )
    return (line + marks).properties(height=360).configure_legend(orient="top", titleOrient="left")


def fast_p(table: pd.DataFrame) -> Chart:
    """`table`: threshold, share (0 to 1), baseline."""
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
    """A bar a value of `column`, longest first. `table` has `column` and `count`."""
    return (
        alt.Chart(table)
        .mark_bar(color=BLUE)
        .encode(
            x=alt.X("count:Q", title=title, axis=alt.Axis(tickMinStep=1, format="d")),
            y=alt.Y(f"{column}:N", title=None, sort="-x", axis=alt.Axis(labelLimit=200, labelOverlap=False)),
            tooltip=[column, "count"],
        )
        .properties(height=_height(len(table), 30))
    )


def outcomes(table: pd.DataFrame) -> Chart:
    """Attempts by outcome. `table` has `outcome` and `count`."""
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
        .properties(height=_height(len(table), 30))
    )


def wins(table: pd.DataFrame) -> Chart:
    """Best speed-up a problem over each baseline. `table`: problem, eager, torch.compile."""
    long = table.melt("problem", var_name="baseline", value_name="speedup").dropna()
    points = (
        alt.Chart(long)
        .mark_point(filled=True, size=80, opacity=0.9)
        .encode(
            x=alt.X(
                "speedup:Q",
                title="speed-up of the best kernel (×)",
                scale=alt.Scale(type="log", nice=False, padding=24),
            ),
            y=alt.Y("problem:N", title=None, sort="-x", axis=alt.Axis(labelLimit=180, labelOverlap=False, grid=True)),
            color=alt.Color("baseline:N", title="over", scale=BASELINES),
            shape=alt.Shape("baseline:N", title="over", scale=BASELINE_SHAPES),
            tooltip=["problem", "baseline", alt.Tooltip("speedup:Q", format=".2f")],
        )
    )
    chart = _one(alt.X) + points
    return chart.properties(height=_height(len(table), 24) + 50).configure_legend(orient="top", titleOrient="left")


def progress(table: pd.DataFrame) -> Chart:
    """Speed-up of each attempt and the best so far. `table`: attempt, speedup (may be missing), best, outcome."""
    x = alt.X("attempt:Q", title="attempt", axis=alt.Axis(tickMinStep=1, format="d"))
    best = (
        alt.Chart(table.dropna(subset=["best"]))
        .mark_line(interpolate="step-after", color=GREEN, strokeWidth=2.5)
        .encode(x=x, y=alt.Y("best:Q", title="speed-up (×)", scale=alt.Scale(zero=True)))
    )
    points = (
        alt.Chart(table.dropna(subset=["speedup"]))
        .mark_point(filled=True, size=60, color=BLUE)
        .encode(x=x, y="speedup:Q", tooltip=["attempt", alt.Tooltip("speedup:Q", format=".2f"), "outcome"])
    )
    return (_one(alt.Y) + best + points).properties(height=300)


def over_time(table: pd.DataFrame) -> Chart:
    """Growth of the archive. `table`: day, kernels (running total)."""
    return (
        alt.Chart(table)
        .mark_area(color=BLUE, opacity=0.5, line={"color": BLUE}, interpolate="step-after")
        .encode(
            x=alt.X("time:T", title="time (UTC)", axis=alt.Axis(tickCount=6)),
            y=alt.Y("kernels:Q", title="kernels in the archive", axis=alt.Axis(tickMinStep=1, format="d")),
            tooltip=[alt.Tooltip("time:T", format="%Y-%m-%d %H:%M"), "kernels"],
        )
        .properties(height=300)
    )


def _one(axis: Any) -> Chart:
    """The line of no gain, at 1x."""
    rule = alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(strokeDash=[4, 4], color=GREY)
    return rule.encode(axis("one:Q"))


def _height(rows: int, each: int) -> int:
    """Streamlit counts the axis into a chart's height."""
    return each * rows + 66


def _time_unit(microseconds: float) -> tuple[str, float]:
    return ("µs", 1.0) if microseconds < 1e3 else ("ms", 1e3) if microseconds < 1e6 else ("s", 1e6)
