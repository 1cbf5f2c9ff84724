"""Which elements lie side by side: the axis of a nest along which vectors lie, and what is the same along it.

Comes in: a nest, its accesses and computed places. Goes out: yes or no, and how many elements a vector has at most.
Knows nothing of the kernel that reads them.
"""

from __future__ import annotations

import math

from rag_kernels.offline.codegen.loop_nest import Access, Loop, Nest, Poly
from rag_kernels.offline.ir import values as ir

MOST_WIDTH = 8  # elements of a vector: of eight floats, loaded as twice sixteen bytes, registers still suffice
OF_BYTES = 16  # the same where all tensors have elements of one byte


def widest(itemsize: int) -> int:
    """Return how many elements of so many bytes are taken together at most."""
    return OF_BYTES if itemsize == 1 else min(MOST_WIDTH, 16 // itemsize)


def axis_of(nest: Nest) -> Loop | None:
    """Return the loop along which vectors may lie."""
    return nest.reduced[-1] if nest.schedule == "row" else nest.lane


def is_step(access: Access, axis: Loop) -> bool:
    """Return whether neighbours along the axis are neighbours in memory."""
    return access.steps.get(axis.leaves[-1]) == {(): 1}


def neighbours(access: Access, axis: Loop, nest: Nest, width: int) -> bool:
    """Return whether elements along the axis lie side by side, each quad at a multiple of its size."""
    if not is_step(access, axis) or value_of(access.constant, nest) % width:
        return False
    if not all(is_of_vector(index, axis) and stride for index, stride in access.values):
        return False
    return all(access.stride(loop.leaves[-1]) % width == 0 for loop in others(axis, nest))


def value_of(poly: Poly, nest: Nest) -> int:
    """Return a polynomial's number at this problem's sizes."""
    return sum(n * math.prod(nest.names.leaf[name].size for name in names) for names, n in poly.items())


def is_of_vector(index: ir.Value, axis: Loop) -> bool:
    """Return whether a computed place is the same along a vector."""
    return not ir.tree_atoms(index) & set(axis.leaves) and not has_reduction(index)


def has_reduction(value: ir.Value) -> bool:
    """Return whether a value is what something comes to."""
    return any(isinstance(v, ir.Reduce | ir.Scan) for v in ir.walk(value))


def is_of_row(index: ir.Value, nest: Nest) -> bool:
    """Return whether a computed place is the same along a whole row, or along a point's lane."""
    inner = {leaf for loop in (*nest.reduced, *([nest.lane] if nest.lane else [])) for leaf in loop.leaves}
    return not ir.tree_atoms(index) & inner and not has_reduction(index)


def others(axis: Loop, nest: Nest) -> list[Loop]:
    """Return all loops but the axis."""
    return [x for x in (*nest.outer, *nest.reduced, *([nest.lane] if nest.lane else [])) if x.var != axis.var]
