"""From times of interleaved pairs to a speed-up with an interval.

The median of pair ratios and its order-statistic interval (about 95 %, no bootstrap): pairs are made in random
order on warm processes, so that drift falls on both sides alike. Knows nothing of how a pair was timed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from eval.records import Ratio


def ratio_of(baseline_s: Sequence[float], candidate_s: Sequence[float]) -> Ratio:
    """Speed-up of the candidate over the baseline from paired times (seconds, same length, at least 3)."""
    ratios = sorted(b / c for b, c in zip(baseline_s, candidate_s, strict=True))
    n = len(ratios)
    below = max(0, math.floor((n - 1.96 * math.sqrt(n)) / 2) - 1)
    return Ratio(median=statistics.median(ratios), low=ratios[below], high=ratios[n - 1 - below])


def product(a: Ratio, b: Ratio) -> Ratio:
    """A ratio of ratios, with the intervals multiplied (wider than either: the safe side)."""
    return Ratio(a.median * b.median, a.low * b.low, a.high * b.high)


def pairs_for(pair_s: float, *, least: int, most: int, target_s: float, limit_s: float) -> int:
    """How many pairs to time: enough for `target_s` in all, within bounds, fewer when a pair is very slow."""
    wanted = min(most, max(least, math.ceil(target_s / max(pair_s, 1e-6))))
    return max(5, min(wanted, math.floor(limit_s / max(pair_s, 1e-6))))


def better(variants: Sequence[Sequence[float]]) -> Sequence[float]:
    """The baseline with the lowest median."""
    return min(variants, key=statistics.median)


def median_us(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e6
