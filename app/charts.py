"""Charts of one kernel: every chart has axis titles with units, and is told apart by shape as well as by colour.

Comes in: a measurement and its device. Goes out: Altair charts. Knows nothing of pages.
"""

from __future__ import annotations

from typing import Any

import altair as alt
import pandas as pd

from rag_kernels.eval.machine.ceilings import product_gflops
from rag_kernels.eval.records import Device, Features, Measurement

BLUE, ORANGE, GREEN, PINK, GREY = "#3A8FCB", "#E69F00", "#009E73", "#CC79A7", "#8C8C8C"
BASELINES = alt.Scale(domain=["eager", "torch.compile"], range=[ORANGE, BLUE])
BASELINE_SHAPES = alt.Scale(domain=["eager", "torch.compile"], range=["circle", "square"])

Chart = Any  # Altair ships no usable types for layered charts


def timing_bars(m: Measurement) -> Chart:
    """Draw one bar each for this kernel, the baselines and the physical floor."""
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
    return bars.properties(height=height(len(rows), 34))


def speedup_intervals(m: Measurement) -> Chart:
    """Draw the median speed-up over each baseline with its interval, beside the line of no gain."""
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
    return (no_gain(alt.X) + coloured).properties(height=height(len(rows), 40))


def has_roofline(device: Device, features: Features) -> bool:
    work = features.flops + features.pointwise_flops
    return min(work, features.bytes_moved, device.bandwidth_gbs, device.fp32_gflops) > 0


def roofline(device: Device, features: Features, m: Measurement) -> Chart:
    """Draw the device's roof with this problem's arithmetic intensity, and where the kernel and eager stand under
    it.
    """
    work = features.flops + features.pointwise_flops
    intensity = work / features.bytes_moved
    rate = product_gflops(features, device)
    ridge = rate / device.bandwidth_gbs
    span = sorted((min(intensity, ridge) / 8, max(intensity, ridge) * 8))
    roof = pd.DataFrame(
        [(i, min(i * device.bandwidth_gbs, rate)) for i in (span[0], ridge, span[1])],
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


def no_gain(axis: Any) -> Chart:
    """Draw the line of no gain, at 1x."""
    rule = alt.Chart(pd.DataFrame({"one": [1.0]})).mark_rule(strokeDash=[4, 4], color=GREY)
    return rule.encode(axis("one:Q"))


def height(rows: int, each: int) -> int:
    """Return a chart's height in pixels with its axis, which Streamlit counts into it."""
    return each * rows + 66


def _time_unit(microseconds: float) -> tuple[str, float]:
    return ("µs", 1.0) if microseconds < 1e3 else ("ms", 1e3) if microseconds < 1e6 else ("s", 1e6)
