"""For which operators and sizes a technique is meant, and at which sizes it helped: rows and tensors, as numbers.

Comes in: shapes of a problem's tensors, a card's ranges, its evidence. Goes out: an `Extent`, how near two problems
are, and words. A problem's row is the last dimension of its largest tensor. Knows nothing of weights and prompts.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence, Set
from dataclasses import dataclass

from rag_kernels.archive.techniques import Evidence, Technique

DOUBLINGS = 3.0  # so far away a proof counts half
UNITS = ((1 << 30, " G"), (1 << 20, " M"), (1 << 10, " K"))


@dataclass(frozen=True, slots=True)
class Extent:
    """Hold how many elements a row of a problem has, and how many its largest tensor."""

    row: int
    tensor: int


def extent_of(shapes: Iterable[Sequence[int]]) -> Extent | None:
    """Return the extent of a problem with tensors of these shapes; None where none has elements."""
    known: list[tuple[int, ...]] = [tuple(shape) for shape in shapes]
    largest = max(known, key=_elements, default=())
    return Extent(largest[-1], _elements(largest)) if largest and _elements(largest) else None


def operators_of(card: Technique, families: Set[str]) -> list[str]:
    """Return which of the operators that a card is for a problem has, by the words of its description."""
    return sorted(operator for operator in card.operators if families >= set(operator.split("+")))


def within(card: Technique, extent: Extent | None) -> bool:
    """Return whether a problem's sizes are those that a card is meant for."""
    return extent is None or (_holds(card.row_sizes, extent.row) and _holds(card.tensor_sizes, extent.tensor))


def nearness(proof: Evidence, extent: Extent | None) -> float:
    """Return what a proof says of a problem of other sizes: 1 at the same, half at three doublings of either."""
    own = extent_of(proof.shapes)
    if own is None or extent is None:
        return 1.0
    away = max(abs(math.log2(own.row / extent.row)), abs(math.log2(own.tensor / extent.tensor)))
    return math.exp2(-away / DOUBLINGS)


def told_sizes(card: Technique) -> str:
    """Return for which sizes a card is meant, in words; empty for any."""
    rows = _range(card.row_sizes, "rows of ")
    tensors = _range(card.tensor_sizes, "tensors of ")
    return "; ".join(filter(None, (rows, tensors, card.sizes)))


def told_extents(proofs: Iterable[Evidence]) -> str:
    """Return the sizes of the problems that proofs are of, in words; empty where none is known."""
    found = [extent for proof in proofs if (extent := extent_of(proof.shapes)) is not None]
    if not found:
        return ""
    return f"rows of {_span([one.row for one in found])}, {_span([one.tensor for one in found])} elements in all"


def _elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape)


def _holds(bounds: Sequence[int], size: int) -> bool:
    return not bounds or (bounds[0] <= size and (len(bounds) == 1 or size <= bounds[1]))


def _range(bounds: Sequence[int], before: str) -> str:
    if not bounds:
        return ""
    if len(bounds) == 1:
        return f"{before}{_short(bounds[0])} elements or more"
    least = f"{_short(bounds[0])} to" if bounds[0] > 1 else "up to"
    return f"{before}{least} {_short(bounds[1])} elements"


def _span(sizes: Sequence[int]) -> str:
    least, most = _short(min(sizes)), _short(max(sizes))
    return least if least == most else f"{least} to {most}"


def _short(size: int) -> str:
    """Return 8 K for 8192: sizes of tensors are mostly of powers of two."""
    unit, name = next(((unit, name) for unit, name in UNITS if size >= unit), (1, ""))
    return f"{size / unit:.4g}{name}"
