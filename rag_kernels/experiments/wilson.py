"""Wilson's interval of a share.

Comes in: how many of how many. Goes out: an interval of about 95 %, which does not shrink to a point where all are
alike: two of two is 34 to 100 %.
"""

from __future__ import annotations

import math

Z = 1.96  # of about 95 %


def wilson(hits: float, count: int) -> tuple[float, float]:
    """Return the interval of the share `hits / count`; of none, anything may be. `hits` may be a sum of shares."""
    if not count:
        return 0.0, 1.0
    share = hits / count
    middle = (share + Z**2 / (2 * count)) / (1 + Z**2 / count)
    half = Z / (1 + Z**2 / count) * math.sqrt(share * (1 - share) / count + Z**2 / (4 * count**2))
    return max(0.0, middle - half), min(1.0, middle + half)
