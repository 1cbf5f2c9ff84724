"""What attention reads, as its kernels need it: loads on loops of their own, whose inner loops run through neighbours.

Comes in: values of the graph while it is lowered. Goes out: the same values as loads with factors, stored before where
they are costly. Raises Unfusable for what cannot be one. Knows nothing of where attention stands in a graph.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from rag_kernels.eval.records import Ref
from rag_kernels.offline.fusion.stores.stored_first import is_looked_up_often
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF, is_float
from rag_kernels.offline.ir.expressions import binary
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import sixteen_bits, uncast
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.lower import Entry, Lowering


def with_own_loops(lowering: Lowering, operands: Sequence[Ref]) -> None:
    """Make operands loads on loops that nothing else has; what costs more than a factor is stored first."""
    for ref in operands:
        entry = lowering.env[ref.name]
        value = lowering.value(ref)
        if not isinstance(without_numbers(value)[0], ir.Load):
            value = with_factor_stored(lowering, value, "" if entry.buffer else f"{ref.name}_stored", entry.dtype)
        lowering.env[ref.name] = Entry((own(lowering, value),), entry.buffer, entry.dtype, entry.view)


def with_factor_stored(lowering: Lowering, value: ir.Value, name: str, dtype: str) -> ir.Value:
    """Return a value that is computed as one of a load: of itself, or of what the graph rounds to sixteen bits on the
    way to it. So a factor takes no more room, and no slower products, than the module's.
    """
    narrow, half = narrowed(lowering, value)
    if narrow is None:
        name = lowering.store(value, name, dtype)
        return ir.load(name, lowering.specs[name].shape, lowering.specs[name].dtype)
    name = lowering.store(narrow, name, half)
    again = lowering.tracked(ir.load(name, narrow.shape, half))
    for mine, theirs in zip(narrow.dims, again.dims, strict=True):
        if mine and theirs:
            lowering.loops.unify(mine, theirs)
    return lowering.tracked(rewrite(value, lambda v: again if v is narrow else None))


def narrowed(lowering: Lowering, value: ir.Value) -> tuple[ir.Value | None, str]:
    """Return what a factor is a view of, perhaps times numbers, that the graph has in sixteen bits, and their dtype."""
    while True:
        found = value.rounded if isinstance(value, ir.Reduce) else sixteen_bits(value)
        half = found or lowering.storage.get(value, "")
        if half in HALF:
            return value, half
        below = without_number(value)
        if below is None:
            return None, ""
        value = below[0]


def as_values(
    lowering: Lowering, operands: Sequence[Ref], make: Callable[[], ir.Value | tuple[ir.Value, ...]]
) -> ir.Value:
    """Return a product of operands as values, which no rule stores for their dtype in the graph."""
    before = {ref.name: lowering.env[ref.name] for ref in operands}
    for name, entry in before.items():
        lowering.env[name] = replace(entry, dtype="")
    try:
        value = make()
    finally:
        lowering.env.update(before)
    assert isinstance(value, ir.Value)
    return value


def own(lowering: Lowering, value: ir.Value) -> ir.Value:
    """Return a load with its factors, on loops of its own, which have the sizes that the dimensions of its buffer have.

    Raises Unfusable for an index that is computed.
    """
    load, scales = peeled(value)
    copies: dict[ir.Atom, ir.Atom] = {}

    def copy(atom: ir.Atom) -> ir.Atom:
        while atom.alias:
            atom = atom.alias
        if atom not in copies:
            copies[atom] = new = ir.Atom(atom.size, atom.fixed, atom.head)
            if atom.parts:
                new.parts = (copy(atom.parts[0]), copy(atom.parts[1]))
                new.parts[0].whole = new.parts[1].whole = new
        return copies[atom]

    index: list[ir.Form | ir.Value] = []
    for form in load.index:
        if not isinstance(form, ir.Form):
            raise ir.Unfusable("a factor that is looked up")
        sizes = tuple((tuple(map(copy, group)), factor) for group, factor in form.sizes)
        index.append(ir.Form(tuple((copy(atom), factor) for atom, factor in form.terms), form.offset, sizes))
    stored = tuple(tuple(copy(atom) for atom in group) for group in load.stored)
    dims = tuple(tuple(copy(leaf) for leaf in ir.leaves(group)) for group in value.dims)
    made: ir.Value = ir.Load(dims, load.dtype, load.buffer, stored, tuple(index), load.storage)
    lowering.loops.track(made)
    for operator, number in reversed(scales):
        made = lowering.op(binary(operator), made, number)
    return made


def peeled(value: ir.Value) -> tuple[ir.Load, list[tuple[Operator, ir.Const]]]:
    """Return the load behind a factor, and the numbers by which it is multiplied or divided.

    Raises Unfusable for any other expression.
    """
    found, scales = without_numbers(value)
    if not isinstance(found, ir.Load):
        raise ir.Unfusable("a factor that is computed")
    return found, scales


def without_numbers(value: ir.Value) -> tuple[ir.Value, list[tuple[Operator, ir.Const]]]:
    """Return what a factor is a view of, without the numbers by which it is multiplied or divided, and these."""
    scales: list[tuple[Operator, ir.Const]] = []
    while (below := without_number(value)) is not None:
        value, scale = below
        scales += [scale] if scale else []
    return value, scales


def without_number(value: ir.Value) -> tuple[ir.Value, tuple[Operator, ir.Const] | None] | None:
    """Return what a value is in another layout or wider dtype, or times a number, with that; None if it is neither."""
    if not isinstance(value, ir.Op):
        return None
    numbers = [a for a in value.args if isinstance(a, ir.Const)]
    others = [a for a in value.args if not isinstance(a, ir.Const)]
    widened = value.operator is Operator.CAST and is_float(value.args[0].dtype) and is_float(value.dtype)
    divided = value.operator is Operator.DIV and value.args[1] in numbers
    if widened or value.operator is Operator.SAME:
        return value.args[0], None
    if len(numbers) == len(others) == 1 and (value.operator is Operator.MUL or divided):
        return others[0], (value.operator, numbers[0])
    return None


def before_weights_rounding(value: ir.Value, weights: ir.Load) -> ir.Value:
    """Return the weights of a softmax without their rounding to sixteen bits, which the product does anyway."""
    below = uncast(value)
    return below if isinstance(below, ir.Load) and below.buffer == weights.buffer else value


def strides(load: ir.Load) -> dict[ir.Atom, int] | None:
    """Return by how many elements each loop steps through a buffer, or None where an index is computed."""
    steps: dict[ir.Atom, int] = {}
    for d, form in enumerate(load.index):
        if not isinstance(form, ir.Form):
            return None
        inner = ir.size_of(ir.leaves(a for group in load.stored[d + 1 :] for a in group))
        for atom, factor in form.terms:
            parts = atom.leaves()
            for i, leaf in enumerate(parts):
                steps[leaf] = steps.get(leaf, 0) + factor * inner * ir.size_of(parts[i + 1 :])
    return steps


def laid_out(lowering: Lowering, load: ir.Load, loops: set[ir.Atom], inner: ir.Group) -> ir.Load:
    """Return the load if its `inner` loops run through neighbours in memory, else one of a copy in which they do."""
    steps, inner = strides(load), ir.leaves(inner)
    expected = [ir.size_of(inner[i + 1 :]) for i in range(len(inner))]
    if steps is not None and [steps.get(a) for a in inner] == expected:
        return load
    used = ir.tree_atoms(load)
    outer = sorted((loops - set(inner)) & used, key=lambda a: a.serial)
    groups = (*((a,) for a in outer), inner)
    moved = lowering.tracked(ir.Op(groups, load.dtype, Operator.SAME, (load,)))
    name = lowering.store(moved, dtype=load.storage)
    again = ir.load(name, moved.shape, load.storage)
    lowering.loops.track(again)
    for mine, theirs in zip(groups, again.dims, strict=True):
        if theirs:
            lowering.loops.unify(mine, theirs)
    return again


def settled_score(lowering: Lowering, score: ir.Value, scores: Sequence[ir.Load], keys: Sequence[ir.Atom]) -> ir.Value:
    """Return the expression with what is costly, or looked up for a row or a key, and does not depend on the scores,
    stored before. `scores` are stand-ins for products.

    Raises Unfusable when what is left has a reduction or a running sum.
    """
    depends: dict[ir.Value, bool] = {}
    for v in ir.walk(score):
        depends[v] = v in scores or any(depends[child] for child in ir.children(v))

    loops, of_keys = set[ir.Atom]().union(*map(ir.tree_atoms, scores)), set(keys)

    def change(v: ir.Value) -> ir.Value | None:
        costly = isinstance(v, ir.Reduce | ir.Scan)
        costly = costly or (isinstance(v, ir.Op) and v.operator.traits.costly)
        of_one = not ir.tree_atoms(v) & of_keys or ir.tree_atoms(v) <= of_keys
        costly = costly or (of_one and is_looked_up_often(v, loops))
        if not costly or depends[v]:
            return None
        again = lowering.reload(v)
        lowering.loops.track(again)
        for mine, theirs in zip(v.dims, again.dims, strict=True):
            if mine and theirs:
                lowering.loops.unify(mine, theirs)
        return again

    made = rewrite(score, change)
    if any(isinstance(v, ir.Reduce | ir.Scan) for v in ir.walk(made)):
        raise ir.Unfusable("a reduction over the scores")
    names = {load.buffer for load in scores}
    if any(isinstance(v, ir.Load) and v.buffer in names and v not in scores for v in ir.walk(made)):
        raise ir.Unfusable("the scores are read in another order")
    return lowering.tracked(made)
