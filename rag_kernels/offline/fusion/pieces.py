"""Elements read of a concatenation, where they are known to be one operand's: they are read where that has them.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps, in which a load that stays inside one piece of a
buffer is that piece's value, if it takes little. A concatenation of which nothing else is read is not written then.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.patterns import NARROWED, sixteen_bits
from rag_kernels.offline.ir.rewriting import Made, rewrite
from rag_kernels.offline.lowering.computed import is_light
from rag_kernels.offline.lowering.steps import Lowered, Step, Stored, with_values


def read_in_pieces(lowered: Lowered) -> Lowered:
    """Return the steps with what is read of one piece of a concatenation taken from where that comes from."""
    pieces: dict[str, list[Stored]] = {}
    steps = list[Step]()
    made: Made = {}  # since the last buffer began

    def change(value: ir.Value) -> ir.Value | None:
        found = pieces.get(value.buffer, ()) if isinstance(value, ir.Load) else ()
        made = (element_of(piece, value) for piece in found if isinstance(value, ir.Load))
        return next((value for value in made if value is not None), None)

    for step in lowered.steps:
        step = with_values(step, partial(rewrite, change=change, made=made))
        steps.append(step)
        if isinstance(step, Stored) and step.slot is not None and not step.slot.after and is_light(step.value):
            if step.buffer not in pieces:
                made = {}
            pieces.setdefault(step.buffer, []).append(step)
    return replace(lowered, steps=tuple(steps))


def element_of(piece: Stored, load: ir.Load) -> ir.Value | None:
    """Return the value of the piece's element that is read, or None where another piece's may be."""
    slot, mapping = piece.slot, dict[ir.Atom, ir.Form]()
    assert slot is not None
    for d, (group, form) in enumerate(zip(piece.value.dims, load.index, strict=True)):
        leaves = ir.leaves(group)
        if not isinstance(form, ir.Form) or form.sizes or len(leaves) > 1:
            return None
        if d == slot.dim:
            first, last = ends_of(form)
            if first < slot.start or last >= slot.start + ir.size_of(leaves):
                return None
            form = replace(form, offset=form.offset - slot.start)
        mapping |= dict.fromkeys(leaves, form)
    try:
        found = ir.rebuild(piece.value, mapping, load.dims)
    except ir.Unfusable:
        return None
    if found.dtype != load.dtype:
        return None
    settle(load, slot.dim)
    narrow = piece.spec.dtype
    if narrow in HALF and sixteen_bits(found) != narrow:
        rounding = next(operator for operator, dtype in NARROWED.items() if dtype == narrow)
        return ir.Op(load.dims, "float32", rounding, (found,))
    return found


def ends_of(form: ir.Form) -> tuple[int, int]:
    """Return the least and the greatest index."""
    steps = [factor * (atom.size - 1) for atom, factor in form.terms]
    return form.offset + sum(n for n in steps if n < 0), form.offset + sum(n for n in steps if n > 0)


def settle(load: ir.Load, dim: int) -> None:
    """Make the sizes of loops numbers that say of which piece an element is."""
    form = load.index[dim]
    terms: Sequence[tuple[ir.Atom, int]] = form.terms if isinstance(form, ir.Form) else ()
    for leaf in (leaf for atom, _ in terms for leaf in atom.leaves()):
        leaf.fixed = True
