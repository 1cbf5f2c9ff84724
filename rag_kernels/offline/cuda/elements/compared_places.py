"""Comparisons of places with numbers (causal masks, paddings) within a vector: one instruction an element.

Comes in: the values of a region, and the loop along which its vectors lie. Goes out: each such comparison as C, in
which what the elements of a vector have in common is one number of 32 bits, compared with one that the compiler knows;
and what that asks of sizes, as C.
"""

from __future__ import annotations

from collections.abc import Iterable

from rag_kernels.offline.codegen.loop_nest import Loop, Nest
from rag_kernels.offline.codegen.operator_texts import C
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Types

MOST = 1 << 16  # of numbers that are compared with: they stay far from the ends of 32 bits


def compared_places(values: Iterable[ir.Value], axis: Loop, nest: Nest) -> dict[ir.Op, tuple[str, str]]:
    """Return comparisons of places along the axis with numbers: as C, and what has to be less than 2^31 for that."""
    found = dict[ir.Op, tuple[str, str]]()
    for value in ir.walk(*values):
        if isinstance(value, ir.Op) and value.operator.traits.types is Types.COMPARED and len(axis.leaves) == 1:
            made = _compared(value, axis.leaves[0], nest)
            if made:
                found[value] = made
    return found


def _compared(value: ir.Op, leaf: ir.Atom, nest: Nest) -> tuple[str, str] | None:
    place, number = value.args
    if not isinstance(place, ir.Index) or place.limit is not None or place.form.sizes:
        return None
    if not isinstance(number, ir.Const) or number.name or number.dtype != "int64" or abs(number.number) > MOST:
        return None
    terms = [(atom.leaves(), factor) for atom, factor in place.form.terms]
    if any(len(leaves) > 1 for leaves, _ in terms) or abs(place.form.offset) > MOST:
        return None
    step = sum(factor for leaves, factor in terms if leaves == (leaf,))
    if not step:
        return None
    sides = f"int32_t({nest.position(place.form)} - {step} * u)", f"{number.number} - {step} * u"
    text = C[value.operator].form.format(*sides)
    return f"({text})", " + ".join(
        [str(2 * MOST), *(f"{f'{abs(n)} * ' * (abs(n) > 1)}{nest.names[x]}" for (x,), n in terms)]
    )
