"""Tensors stored for what reads single elements of them, read where a product makes them.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps, in which a value of a product that was stored to
be read again is computed where it is read, and an element at a computed place along its columns (a loss's target) is a
sum over all columns of which one counts. `product_statistics.py` asks whether that lets the product's nest keep it all.
"""

from __future__ import annotations

from dataclasses import replace

from rag_kernels.offline.fusion.loops import loops_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import Expr, cast_value, equal, where
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.steps import Library, Lowered, Stored, made_by, values_of, with_values

NARROW = "int32"  # in which places are compared: 64 bits take two instructions


def unstored(lowered: Lowered, step: Stored) -> Lowered | None:
    """Return the steps without one that stores a value, which is computed where it is read; None where it cannot be."""
    others = [s for s in lowered.steps if s is not step]
    if any(isinstance(s, Library) or step.buffer in made_by(s) for s in others):
        return None
    loads = {v for s in lowered.steps for v in ir.walk(*values_of(s)) if isinstance(v, ir.Load)}
    read: dict[ir.Value, ir.Value] = {}
    for load in loads:
        if load.buffer == step.buffer:
            found = element(step.value, load)
            if found is None:
                return None
            read[load] = found
    if step.slot or step.buffer in lowered.results or not read:
        return None
    steps = tuple(with_values(s, lambda v: rewrite(v, read.get)) for s in others)
    return replace(lowered, steps=steps)


def element(value: ir.Value, load: ir.Load) -> ir.Value | None:
    """Return the element of a value that a load reads of where it is stored, or None where that is not to be seen."""
    if load.dtype != value.dtype:
        return None
    picked: list[tuple[ir.Atom, ir.Value]] = []
    for group, form in zip(value.dims, load.index, strict=True):
        own = ir.leaves(group)
        if isinstance(form, ir.Value):
            if len(own) != 1 or picked:
                return None
            picked.append((own[0], form))
        elif (
            form.offset
            or form.sizes
            or [(leaf, n) for a, n in form.terms for leaf in a.leaves()] != [(leaf, 1) for leaf in own]
        ):
            return None
    if not picked:
        return ir.Op(load.dims, value.dtype, Operator.SAME, (value,))
    [(column, place)] = picked
    if column.size >= 1 << 31 or column in loops_of(load) or column in ir.tree_atoms(place):
        return None
    here = ir.Index(value.dims, NARROW, ir.Form(((column, 1),)))
    there = ir.Op(value.dims, NARROW, Operator.SAME, (cast_value(place, NARROW),))
    chosen = where(equal(Expr(here), Expr(there)), Expr(value), 0).value
    return ir.Reduce(load.dims, value.dtype, Kind.SUM, chosen, (column,))
