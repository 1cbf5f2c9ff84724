"""From times of interleaved pairs to a speed-up with an interval.

The median of pair ratios and its order-statistic interval (about 95 %, no bootstrap): pairs are made in random
order on warm processes, so that drift falls on both sides alike. The call that comes first in a pair may be slower for
that alone; then ratios lie around two values, and their common median jumps from one to the other by chance. So either
order comes equally often and is taken for itself. Knows nothing of how a pair was timed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from random import Random

from rag_kernels.eval.records import Ratio

NARROW = 1.02  # from the bottom of an interval to its top: no further pairs are needed
MIN_HALF = 5  # pairs of either order; with fewer the orders are not told apart


@dataclass
class Paired:
    """Seconds by variant, one of each a pair, and the order in which each pair's variants ran."""

    seconds: dict[str, list[float]]
    orders: list[list[str]] = field(default_factory=list)

    def speedup(self, of: str, over: str) -> Ratio:
        """How many times as fast `of` is. The geometric mean of both orders', their intervals multiplied: wider than
        95 %, the safe side for a claim."""
        parts = self.by_order(of, over)
        return Ratio(*(math.prod(values) ** (1 / len(parts)) for values in zip(*map(_values, parts), strict=True)))

    def is_narrow(self, of: str, over: str) -> bool:
        """Whether the speed-up is known to within 1 % or so, wherever it lies."""
        found = self.speedup(of, over)
        return found.high <= NARROW * found.low

    def by_order(self, of: str, over: str) -> list[Ratio]:
        """The speed-up where `of` ran before `over`, and where it ran after; one for all where pairs are few."""
        first = [order.index(of) < order.index(over) for order in self.orders]
        halves = [[i for i, before in enumerate(first) if before is side] for side in (True, False)]
        if min(map(len, halves)) < MIN_HALF:
            halves = [list(range(len(self.orders)))]
        return [ratio_of([self.seconds[over][i] for i in h], [self.seconds[of][i] for i in h]) for h in halves]


def _values(ratio: Ratio) -> tuple[float, float, float]:
    return ratio.median, ratio.low, ratio.high


def orders(names: Sequence[str], pairs: int, rng: Random) -> list[list[str]]:
    """An order of the variants for each pair, by chance; of any two variants either comes first equally often."""
    drawn: list[list[str]] = []
    while len(drawn) < pairs:
        one = rng.sample(names, len(names))
        drawn += [one, one[::-1]]
    return rng.sample(drawn[:pairs], pairs)


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


def median_us(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e6
