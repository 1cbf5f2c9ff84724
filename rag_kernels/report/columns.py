"""Which columns of a table a terminal has room for: those that say least are left out, and no heading is cut.

Comes in: widths, and the order in which columns may go. Goes out: the names of those that stay.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

GAP = 3  # between columns, as rich draws them; one more at the edge


def fitting(widths: Mapping[str, int], droppable: Sequence[str], room: int) -> list[str]:
    """Return the names that fit into so many characters, in their order; `droppable` go first to last."""
    kept = list(widths)
    for name in droppable:
        if sum(widths[each] + GAP for each in kept) < room:
            break
        kept.remove(name)
    return kept
