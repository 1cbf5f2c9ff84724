"""Sums whose results have few components each (forces in space, colours of a ray), as one nest for all of them.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps, in which such a result is stored component by
component: what all components have in common, a weight for each pair, is computed once and not for each of them. As one
result it ran along its components, a column of the sum for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from rag_kernels.offline.fusion.loops import key_of, reductions
from rag_kernels.offline.fusion.sums.products import tile_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.rewriting import rewrite_along
from rag_kernels.offline.lowering.steps import Lowered, Step, Stored

MOST, LONG = 4, 16  # components; elements of a sum


def with_components_apart(lowered: Lowered) -> Lowered:
    """Return the steps with sums of few components stored one by one."""
    steps = list[Step]()
    for step in lowered.steps:
        leaf = component_of(step) if isinstance(step, Stored) else None
        steps += components(step, leaf) if isinstance(step, Stored) and leaf else [step]
    return replace(lowered, steps=tuple(steps))


def component_of(step: Stored) -> ir.Atom | None:
    """Return the loop over components of what a step stores, if it has sums that share work among them."""
    groups = [ir.leaves(group) for group in step.value.dims]
    if step.slot is not None or len(groups) < 2 or len(groups[-1]) != 1:
        return None
    (leaf,), found = groups[-1], [v for v in reductions(step.value) if groups[-1][0] in ir.tree_atoms(v)]
    plain = all(isinstance(v, ir.Reduce) and not tile_of(v) for v in found)
    few = 1 < leaf.size <= MOST and not any(leaf in group for group in groups[:-1])
    return leaf if few and found and plain and any(shares_work(v, leaf) for v in found) else None


def shares_work(value: ir.Value, leaf: ir.Atom) -> bool:
    """Return whether a long sum computes something for each of its elements that all components have in common."""
    over = key_of(value)[1]
    if not isinstance(value, ir.Reduce) or ir.size_of(over) < LONG or leaf.window:
        return False
    inside = ir.walk(value.arg, enter=lambda v: not isinstance(v, ir.Reduce | ir.Scan))
    alike = (v for v in inside if isinstance(v, ir.Op) and leaf not in ir.tree_atoms(v) and ir.tree_atoms(v) & over)
    return any(any(isinstance(below, ir.Load) for below in ir.walk(v)) for v in alike)


def components(step: Stored, leaf: ir.Atom) -> list[Step]:
    """Return a step for each component; the step itself where a value cannot be had so."""
    total, dim = ir.Atom(leaf.size, fixed=True), len(step.value.dims) - 1
    try:
        values = [component(step.value, leaf, place) for place in range(leaf.size)]
    except ir.Unfusable:
        return [step]
    leaf.fixed = True
    return [replace(step, value=value, slot=ir.Slot(dim, place, total)) for place, value in enumerate(values)]


def component(value: ir.Value, leaf: ir.Atom, place: int) -> ir.Value:
    """Return a value at one place of a loop; what does not run over it stays the same object.

    Raises Unfusable for a scan, and where the loop was split.
    """
    mapping = {leaf: ir.Form((), place)}

    def changed(v: ir.Value, visit: Callable[[ir.Value], ir.Value]) -> ir.Value:
        dims = tuple(tuple(a for a in ir.leaves(group) if a is not leaf) for group in v.dims)
        match v:
            case ir.Load():
                index = tuple(i.substitute(mapping) if isinstance(i, ir.Form) else visit(i) for i in v.index)
                return ir.Load(dims, v.dtype, v.buffer, v.stored, index, v.storage)
            case ir.Index():
                return ir.Index(dims, v.dtype, v.form.substitute(mapping), v.limit, v.every)
            case ir.Op():
                return ir.Op(dims, v.dtype, v.operator, tuple(map(visit, v.args)))
            case ir.Reduce():
                guards = tuple(replace(g, form=g.form.substitute(mapping)) for g in v.guards)
                return ir.Reduce(dims, v.dtype, v.kind, visit(v.arg), v.over, guards, v.rounded)
            case ir.Const() | ir.Size():
                return replace(v, dims=dims)
        raise ir.Unfusable("a running total at one place")

    return rewrite_along(value, leaf, changed)
