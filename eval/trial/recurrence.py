"""Does a candidate need that contents, or parts of them, come again?

Comes in: the times of a race, some pairs of which were on contents that share nothing with earlier ones. Goes out: a
sentence, or nothing.
"""

from __future__ import annotations

import statistics

from rag_kernels.eval.timing.race import Times

LEAST = 4  # pairs of either sort, of which one may be disturbed
FACTOR = 1.25  # times slower, against eager in the same pairs


def depends_on_recurrence(times: Times) -> str:
    """A sentence where the candidate is clearly slower on contents that share nothing with earlier ones, else ""."""
    if len(times.fresh) != len(times.orders):
        return ""
    ratios = [e / c for e, c in zip(times.seconds["eager"], times.seconds["candidate"], strict=True)]
    fresh = sorted(r for r, is_fresh in zip(ratios, times.fresh, strict=True) if is_fresh)
    known = sorted(r for r, is_fresh in zip(ratios, times.fresh, strict=True) if not is_fresh)
    if min(len(fresh), len(known)) < LEAST:
        return ""
    slower = statistics.median(known) / statistics.median(fresh)
    if slower < FACTOR or fresh[-2] > known[len(known) // 4]:
        return ""
    return f"{slower:.2f} times as slow on contents that share nothing with earlier ones"
