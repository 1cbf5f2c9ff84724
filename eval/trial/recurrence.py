"""Does a candidate need that contents, or parts of them, come again?

Comes in: the times of a race, some pairs of which were on contents that share nothing with earlier ones. Goes out: a
sentence, or nothing.
"""

from __future__ import annotations

import statistics

from rag_kernels.eval.timing.race import Times


def depends_on_recurrence(times: Times) -> str:
    """Return a sentence where the candidate is clearly slower on contents that share nothing with earlier ones.

    Else "".
    """
    slower = _slower(times)
    if slower is None:
        return ""
    typical, second, noise = slower
    rule = times.rule
    if typical < max(rule.unrelated_slower, noise) or second < rule.unrelated_second:
        return ""
    return f"{typical:.2f} times as slow on contents that share nothing with earlier ones"


def needs_no_recurrence(times: Times) -> bool:
    """Return whether it was seen to be about as fast on such contents, where the other word may be chance."""
    slower = _slower(times)
    return slower is not None and slower[0] < times.rule.unrelated_second


def _slower(times: Times) -> tuple[float, float, float] | None:
    """Return how often as slow it is on fresh contents: typically, at least (but for one), and what noise makes."""
    rule = times.rule
    if len(times.fresh) != len(times.orders):
        return None
    ratios = [e / c for e, c in zip(times.seconds["eager"], times.seconds["candidate"], strict=True)]
    fresh = [n for n, is_fresh in enumerate(times.fresh) if is_fresh]
    known = [n for n, is_fresh in enumerate(times.fresh) if not is_fresh]
    if min(len(fresh), len(known)) < rule.unrelated_pairs:
        return None

    def slower(pair: int) -> float:
        near = sorted((n for n in known if n != pair), key=lambda n: abs(n - pair))[: rule.unrelated_near]
        return statistics.median(ratios[n] for n in near) / ratios[pair]

    found, usual = sorted(map(slower, fresh)), sorted(map(slower, known))
    return statistics.median(found), found[1], usual[int(rule.unrelated_noise * len(usual))]
