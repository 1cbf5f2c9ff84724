"""Charts of a report: fast_p over the speed-up, and what more samples are worth, with their intervals.

Comes in: scores. Goes out: an SVG or PNG file. altair, and vl-convert, which draws without a browser, take seconds to
import and are loaded when a chart is asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rag_kernels.eval.records import MachineError
from rag_kernels.experiments.scores import Score

WIDTH, HEIGHT = 340, 260


def draw(scores: Sequence[Score], title: str, out: Path) -> None:
    """Write the chart; the format is that of the file's suffix. Raises MachineError without vl-convert-python."""
    try:
        import vl_convert  # noqa: F401
    except ImportError:
        raise MachineError("Pictures need the package vl-convert-python: pip install 'rag-kernels[plots]'.") from None
    _charts(scores, title).save(str(out), scale_factor=2)


def _charts(scores: Sequence[Score], title: str) -> Any:
    import altair as alt

    overall = [_row(s, s.p, "best of all") for s in scores if s.metric == "fast_p"]
    panels = [_panel(overall, alt.X("x:Q", title="speed-up p (×)"), "problems faster than p", "fast_p")]
    sampled = [_row(s, s.k, _name(s)) for s in scores if s.k is not None and s.p in (None, 1.0, 2.0)]
    if len({row["x"] for row in sampled}) > 1:
        ks = sorted({row["x"] for row in sampled})
        x = alt.X("x:Q", title="samples k", scale=alt.Scale(type="log", base=2), axis=alt.Axis(values=ks))
        panels.append(_panel(sampled, x, "problems solved by one of k", "by samples"))
    return alt.hconcat(*panels, title=title).resolve_scale(color="independent", shape="independent")


def _panel(rows: list[dict[str, Any]], x: Any, y_title: str, title: str) -> Any:
    import altair as alt

    legend = None if len({row["name"] for row in rows}) == 1 else alt.Legend(title=None)
    y: dict[str, Any] = {"title": y_title, "axis": alt.Axis(format="%"), "scale": alt.Scale(domain=[0, 1])}
    base = alt.Chart(alt.InlineData(values=rows)).encode(x=x, color=alt.Color("name:N", legend=legend))
    intervals = base.mark_rule(opacity=0.6).encode(y=alt.Y("low:Q", **y), y2="high:Q")
    lines = base.mark_line().encode(y=alt.Y("mean:Q", **y))
    points = base.mark_point(filled=True, size=60).encode(
        y=alt.Y("mean:Q", **y), shape=alt.Shape("name:N", legend=None)
    )
    return (intervals + lines + points).properties(width=WIDTH, height=HEIGHT, title=title)


def _row(score: Score, x: float | int | None, name: str) -> dict[str, Any]:
    found = score.interval
    return {"x": x, "name": name, "mean": found.mean, "low": found.low, "high": found.high}


def _name(score: Score) -> str:
    return "pass@k" if score.p is None else f"fast_{score.p:g}@k"
