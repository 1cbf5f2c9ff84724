"""From times of interleaved pairs to a speed-up with an interval.

The median of pair ratios and its order-statistic interval (about 95 %, no bootstrap): pairs are made in random
order on warm processes, so that drift falls on both sides alike. The call that comes first in a pair may be slower for
that alone; then ratios lie around two values, and their common median jumps from one to the other by chance. So either
order comes equally often and is taken for itself. Knows nothing of how a pair was timed.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from rag_kernels.eval.records import Ratio
from rag_kernels.eval.timing_rule import TimingRule


@dataclass
class Paired:
    """Seconds by variant, one of each a pair, and the order in which each pair's variants ran."""

    seconds: dict[str, list[float]]
    orders: list[list[str]] = field(default_factory=list)
    rule: TimingRule = field(default_factory=TimingRule)

    def speedup(self, of: str, over: str) -> Ratio:
        """Return how many times as fast `of` is.

        The geometric mean of both orders', their intervals multiplied: wider than 95 %, the safe side for a claim.
        """
        parts = self.by_order(of, over)
        return Ratio(*(math.prod(values) ** (1 / len(parts)) for values in zip(*map(_values, parts), strict=True)))

    def is_narrow(self, of: str, over: str) -> bool:
        """Return whether the speed-up is known to within 1 % or so, wherever it lies."""
        found = self.speedup(of, over)
        return found.high <= self.rule.narrow * found.low

    def by_order(self, of: str, over: str) -> list[Ratio]:
        """Return the speed-up where `of` ran before `over`, and where it ran after; one for all where pairs are few."""
        first = [order.index(of) < order.index(over) for order in self.orders]
        halves = [[i for i, before in enumerate(first) if before is side] for side in (True, False)]
        if min(map(len, halves)) < self.rule.min_half:
            halves = [list(range(len(self.orders)))]
        over_s, of_s = self.seconds[over], self.seconds[of]
        return [ratio_of([over_s[i] for i in h], [of_s[i] for i in h], self.rule) for h in halves]

    def kept_us(self, most: int) -> tuple[tuple[str, tuple[float, ...]], ...]:
        """Return microseconds of at most so many pairs by variant, evenly spread over all, for whoever draws them."""
        count = len(self.orders)
        chosen = [i * count // min(count, most) for i in range(min(count, most))]
        return tuple(
            (name, tuple(float(f"{1e6 * taken[i]:.4g}") for i in chosen)) for name, taken in self.seconds.items()
        )


def _values(ratio: Ratio) -> tuple[float, float, float]:
    return ratio.median, ratio.low, ratio.high


P = TypeVar("P", bound=Paired)


def interleave(
    paired: P,
    pairs: int,
    rng: Random,
    *,
    before: Callable[[int], None],
    measure: Callable[[str], float],
    after: Callable[[int], bool] = lambda number: False,
) -> P:
    """Measure every variant once a pair, in random order: the one loop by which anything is timed.

    `before` lays out the content of a pair, `measure` returns the seconds of a call of a variant, and `after` says
    whether to stop early; each is told the number of the pair or the variant's name.
    """
    names = list(paired.seconds)
    for number, order in enumerate(orders(names, pairs, rng)):
        before(number)
        paired.orders.append(order)
        for name in order:
            paired.seconds[name].append(measure(name))
        if after(number):
            break
    return paired


def orders(names: Sequence[str], pairs: int, rng: Random) -> list[list[str]]:
    """Return an order of the variants for each pair, by chance.

    Of any two variants either comes first equally often.
    """
    drawn: list[list[str]] = []
    while len(drawn) < pairs:
        one = rng.sample(names, len(names))
        drawn += [one, one[::-1]]
    return rng.sample(drawn[:pairs], pairs)


def ratio_of(baseline_s: Sequence[float], candidate_s: Sequence[float], rule: TimingRule) -> Ratio:
    """Return speed-up of the candidate over the baseline from paired times (seconds, same length, at least 3)."""
    ratios = sorted(b / c for b, c in zip(baseline_s, candidate_s, strict=True))
    n = len(ratios)
    below = max(0, math.floor((n - rule.deviations * math.sqrt(n)) / 2) - rule.further)
    return Ratio(median=statistics.median(ratios), low=ratios[below], high=ratios[n - 1 - below])


def product(a: Ratio, b: Ratio) -> Ratio:
    """Return a ratio of ratios, with the intervals multiplied (wider than either: the safe side)."""
    return Ratio(a.median * b.median, a.low * b.low, a.high * b.high)


def pairs_for(pair_s: float, rule: TimingRule, *, least: int | None = None, most: int | None = None) -> int:
    """Return how many pairs to time: enough for `rule.timed_s` in all, fewer when a pair is very slow.

    `least` and `most` take the place of the rule's bounds.
    """
    least, most, pair_s = least or rule.pairs, most or rule.max_pairs, max(pair_s, 1e-6)
    wanted = min(most, max(least, math.ceil(rule.timed_s / pair_s)))
    return max(rule.min_half, min(wanted, math.floor(rule.max_timed_s / pair_s)))


def median_us(seconds: Sequence[float]) -> float:
    return statistics.median(seconds) * 1e6
