"""Draw what is known of one kernel, problem or run: which numbers go into which chart.

Comes in: records and small tables. Goes out: SVG text by `app.svg`. Knows nothing of pages.
"""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd

from rag_kernels.app import svg, values
from rag_kernels.app.svg import BLUE, GREEN, GREY, ORANGE, Mark, Point
from rag_kernels.eval.machine.ceilings import product_gflops
from rag_kernels.eval.records import Device, Features, Measurement
from rag_kernels.eval.told import told_speedup

SIDES: dict[str, tuple[str, str, Mark]] = {  # of a pair: name, colour, shape
    "candidate": ("this kernel", GREEN, "diamond"),
    "eager": ("eager", ORANGE, "circle"),
    "compile": ("torch.compile", BLUE, "square"),
}
UNITS = ((1e3, "µs", 1.0), (1e6, "ms", 1e3), (float("inf"), "s", 1e6))
SPANS = ((120, "seconds", 1.0), (7200, "minutes", 60.0), (172_800, "hours", 3600.0), (float("inf"), "days", 86_400.0))


def times(m: Measurement) -> str:
    """Draw a bar each for the kernel, the baselines and the physical floor."""
    rows = [("physical floor", m.floor_us, GREY), ("this kernel", m.candidate_us, GREEN), ("eager", m.eager_us, ORANGE)]
    rows += [("torch.compile", m.compile_us, BLUE)] if m.compile_us is not None else []
    return svg.bars([(name, us, values.duration(us), colour) for name, us, colour in rows], "Time of one call")


def gains(m: Measurement) -> str:
    """Draw the speed-up over each baseline with its interval."""
    rows = [("eager", m.speedup_eager, ORANGE)]
    rows += [("torch.compile", m.speedup_compile, BLUE)] if m.speedup_compile is not None else []
    return svg.intervals([(n, r.low, r.median, r.high, c) for n, r, c in rows], "Speed-up over each baseline")


def pairs(m: Measurement) -> str:
    """Draw every kept pair of a measurement; empty where the archive has none."""
    if not m.paired_us:
        return ""
    unit, scale = next((unit, scale) for limit, unit, scale in UNITS if max(m.candidate_us, m.eager_us) < limit)
    columns = [
        (name, [us / scale for us in taken], colour, mark)
        for side, taken in m.paired_us
        for name, colour, mark in [SIDES.get(side, (side, GREY, "ring"))]
    ]
    return svg.pairs(columns, unit, "Times of each interleaved pair")


def roofline(device: Device, features: Features, kernels: pd.DataFrame, address: Callable[[str], str]) -> str:
    """Draw all kernels of a problem on a device, and its baselines, under the device's roof; empty where none is known.

    `kernels` has id, ms, eager_ms, compile_ms, speedup; baselines are those beside the first.
    """
    work = features.flops + features.pointwise_flops
    if kernels.empty or min(work, features.bytes_moved, device.bandwidth_gbs, device.fp32_gflops) <= 0:
        return ""
    intensity, first = work / features.bytes_moved, kernels.iloc[0]

    def rate(ms: float) -> float:
        return float(work / ms / 1e6)

    points = []
    for name, ms, colour, mark in (
        ("eager", first["eager_ms"], ORANGE, SIDES["eager"][2]),
        ("torch.compile", first["compile_ms"], BLUE, SIDES["compile"][2]),
    ):
        if pd.notna(ms):
            points.append(Point(intensity, rate(ms), f"{name}: {values.duration(1e3 * ms)}", colour, mark, size=5.5))
    for row in kernels.dropna(subset=["ms"]).itertuples():
        told = f"{values.short(row.id)}: {values.duration(1e3 * row.ms)}, {values.times(row.speedup)}"
        best = row.Index == kernels.index[0]
        points.append(
            Point(
                intensity,
                rate(row.ms),
                told,
                GREEN,
                "diamond" if best else "ring",
                link=address(row.id),
                size=6.5 if best else 4.5,
            )
        )
    return svg.roofline(device.bandwidth_gbs, product_gflops(features, device), points, "Roofline")


def roof_of(device: Device, features: Features, m: Measurement, kernel_id: str) -> str:
    """Draw one measurement of a kernel under the device's roof; empty where none is known."""
    row = {"id": kernel_id, "ms": m.candidate_us / 1e3, "eager_ms": m.eager_us / 1e3, "speedup": told_speedup(m)}
    row["compile_ms"] = None if m.compile_us is None else m.compile_us / 1e3
    return roofline(device, features, pd.DataFrame([row]), lambda _: "")


def progress(attempts: pd.DataFrame, address: Callable[[str], str] | None = None) -> str:
    """Draw the speed-ups of attempts against the time since the first; empty where none passed.

    `attempts`: created_at (a moment), speedup, at_least, kernel_id. A ring is a speed-up that nothing confirmed.
    """
    known = attempts.dropna(subset=["speedup", "created_at"])
    if known.empty:
        return ""
    since = (known["created_at"] - attempts["created_at"].min()).dt.total_seconds()
    unit, scale = next((unit, scale) for limit, unit, scale in SPANS if since.max() < limit)
    points = [
        Point(
            second,
            row.speedup,
            f"{'≥ ' if row.at_least else ''}{values.times(row.speedup)}{'' if row.at_least else ', confirmed'}",
            GREEN,
            "ring" if row.at_least else "circle",
            link=address(row.kernel_id) if address else "",
        )
        for second, row in zip(since, known.itertuples(), strict=True)
    ]
    return svg.progress(
        points,
        clock=lambda second: f"{second / scale:.3g}",
        span=f"{unit} since the first attempt",
        label="Speed-up against time",
    )
