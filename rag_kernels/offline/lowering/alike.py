"""Loops of results that are equally long at any size: they become the same, so that one nest can store both.

Comes in: the steps of a walk over the graph, and its loops. Goes out: the same steps, of which pointwise ones that read
one tensor and run along its dimensions alike (all but the first, all but the last) share loops: what they read is read
once. Slices have loops of their own until then, since one value may need both.
"""

from __future__ import annotations

from collections.abc import Iterable

from rag_kernels.offline.ir import values as ir

MOST = 8  # results of a nest: each takes registers


def share_loops(results: Iterable[ir.Value], loops: ir.Loops) -> None:
    """Unify the loops of results that are alike, in order; those that one value would use twice stay apart."""
    alike: list[tuple[ir.Value, int]] = []  # one of each kind, and how many there are
    for value in results:
        if any(isinstance(v, ir.Reduce | ir.Scan) for v in ir.walk(value)):
            continue
        for number, (other, count) in enumerate(alike):
            if count < MOST and _are_alike(value, other):
                try:
                    for theirs, mine in zip(other.dims, value.dims, strict=True):
                        loops.unify(theirs, mine)
                except ir.Unfusable:
                    continue
                alike[number] = other, count + 1
                break
        else:
            alike.append((value, 1))


def _are_alike(one: ir.Value, other: ir.Value) -> bool:
    """Return whether two results have as many elements in each dimension at any size, and read a tensor in common."""
    if one.shape != other.shape:
        return False
    pairs = [(ir.leaves(a), ir.leaves(b)) for a, b in zip(one.dims, other.dims, strict=True)]
    if all(a == b for a, b in pairs) or not all(a == b or _run_alike(a, b) for a, b in pairs):
        return False
    return bool(_read(one) & _read(other))


def _run_alike(one: tuple[ir.Atom, ...], other: tuple[ir.Atom, ...]) -> bool:
    """Return whether two loops run along the same dimension, as many steps more or fewer."""
    if len(one) != 1 or len(other) != 1:
        return False
    return one[0].along is not None and one[0].along == other[0].along


def _read(value: ir.Value) -> set[str]:
    return {v.buffer for v in ir.walk(value) if isinstance(v, ir.Load)}
