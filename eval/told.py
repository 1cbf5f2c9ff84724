"""The numbers that are told of a kernel, the same in every table, page and export.

Comes in: a `Judged`. Goes out: a `Told`, or None where nothing was measured. A kernel's speed-up is its confirmed one,
where it was confirmed; else the lower end of its interval, which readers mark as such ("at least"). The archive keeps
the same numbers in columns (`told`, `told_eager`...), so that a query and a command never differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.eval.records import Judged, Measurement, Passed, Ratio


@dataclass(frozen=True, slots=True)
class Told:
    """Hold what is said of a kernel's speed: ratios of baseline over kernel, and floor over time."""

    speedup: float  # over the better of both baselines
    over_eager: float
    over_compile: float | None  # None: torch.compile failed on this problem
    of_floor: float | None  # None: no floor is known, see `told_floor`
    confirmed: bool  # else the speed-ups are lower ends of intervals


def told(judged: Judged) -> Told | None:
    """Return the numbers to show of a judgement; None unless it passed."""
    verdict = judged.verdict
    if not isinstance(verdict, Passed):
        return None
    m = verdict.measurement
    over_compile = None if m.speedup_compile is None else told_ratio(m, m.speedup_compile)
    return Told(told_speedup(m), told_ratio(m, m.speedup_eager), over_compile, told_floor(m), m.confirmed)


def told_speedup(measured: Measurement) -> float:
    """Return the one number of a measurement: over the better baseline, confirmed, else at least."""
    ratios = (measured.speedup_eager, measured.speedup_compile)
    return min(told_ratio(measured, ratio) for ratio in ratios if ratio is not None)


def told_ratio(measured: Measurement, ratio: Ratio) -> float:
    """Return the median of a confirmed measurement's ratio, else the lower end of its interval."""
    return ratio.median if measured.confirmed else ratio.low


def told_floor(measured: Measurement) -> float | None:
    """Return the share of the floor that was reached; None where the kernel was faster than it.

    Such a floor is no floor: its ceilings are of another machine of the same name, or were measured on a busy one.
    """
    return None if measured.floor_fraction > 1 else measured.floor_fraction
