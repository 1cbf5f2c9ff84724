"""Where attention writes: at once in the order of dimensions in which what follows copies or reads it.

Comes in: lowered steps. Goes out: the same steps with a copy less, or with another order of the result's dimensions.
Knows nothing of how attention was recognised.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from rag_kernels.offline.fusion.attention.operands import peeled
from rag_kernels.offline.graph.nodes import refs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.steps import Attended, Chained, Library, Lowered, Outer, Step, Stored, values_of

Made = Attended | Outer


def in_place(lowered: Lowered) -> Lowered:
    """Return the steps in which attention and chained products write where a copy of what they make would lie, in
    another order of dimensions. Chained products also do so for a copy in another dtype, or times numbers.
    """
    made: dict[str, Made] = {step.buffer: step for step in lowered.steps if isinstance(step, Attended)}
    made |= {outer.buffer: outer for step in lowered.steps if isinstance(step, Chained) for outer in step.outer}
    trees = [value for step in lowered.steps for value in values_of(step)]
    trees += [step.score for step in lowered.steps if isinstance(step, Attended)]
    readers = Counter(v.buffer for tree in trees for v in ir.walk(tree) if isinstance(v, ir.Load))
    placed: dict[str, Made] = {}
    copies: set[Stored] = set()
    for step in lowered.steps:
        if not isinstance(step, Stored) or step.slot is not None:
            continue
        load = _copied(step.value)
        if load is not None and load.buffer in made and readers[load.buffer] == 1:
            again = _stored_as(made[load.buffer], load, step)
            if again is not None:
                placed[load.buffer] = again
                copies.add(step)
    steps = tuple(_placed(s, placed) for s in lowered.steps if not (isinstance(s, Stored) and s in copies))
    for name in placed:
        del lowered.buffers[name]
    return replace(lowered, steps=steps)


def _copied(value: ir.Value) -> ir.Load | None:
    """Return the load that a value is, perhaps times numbers, or None."""
    try:
        return peeled(value)[0]
    except ir.Unfusable:
        return None


def _stored_as(made: Made, load: ir.Load, copy: Stored) -> Made | None:
    """Return what a step makes as a copy has it, or None where it cannot write that."""
    dims, scales = written_as(made.dims, load, copy.value.dims), peeled(copy.value)[1]
    if dims is None or (isinstance(made, Attended) and (scales or copy.spec.dtype != made.storage)):
        return None
    if isinstance(made, Attended):
        return replace(made, buffer=copy.buffer, dims=dims)
    weight = made.weight
    for operator, number in scales:
        weight = ir.Op(weight.dims, weight.dtype, operator, (weight, number))
    return replace(made, buffer=copy.buffer, dims=dims, storage=copy.spec.dtype, weight=weight)


def _placed(step: Step, placed: dict[str, Made]) -> Step:
    """Return a step that writes what it makes where copies of it would lie."""
    match step:
        case Attended():
            again = placed.get(step.buffer, step)
            return again if isinstance(again, Attended) else step
        case Chained():
            outer = [placed.get(o.buffer, o) for o in step.outer]
            return replace(step, outer=tuple(o for o in outer if isinstance(o, Outer)))
        case _:
            return step


def as_read(lowered: Lowered) -> Lowered:
    """Return the steps in which attention writes its result in the order in which all that read it have its loops.

    So heads that a linear layer reads side by side lie side by side.
    """
    for attended in [step for step in lowered.steps if isinstance(step, Attended)]:
        name = attended.buffer
        others = [v for s in lowered.steps if not isinstance(s, Stored) for v in values_of(s)]
        others += [s.score for s in lowered.steps if isinstance(s, Attended)]
        trees = [step.value for step in lowered.steps if isinstance(step, Stored)]
        reads = [(v, tree) for tree in trees for v in ir.walk(tree) if isinstance(v, ir.Load) and v.buffer == name]
        elsewhere = any(isinstance(v, ir.Load) and v.buffer == name for tree in others for v in ir.walk(tree))
        named = {ref for s in lowered.steps if isinstance(s, Library) for ref in library_reads(s)}
        orders = {order_of(load, tree) for load, tree in reads}
        order = orders.pop() if len(orders) == 1 else ()
        if not order or elsewhere or name in {*named, *lowered.results} or order == tuple(range(len(order))):
            continue
        lowered.buffers[name] = replace(
            lowered.buffers[name], shape=tuple(lowered.buffers[name].shape[d] for d in order)
        )

        def change(v: ir.Value, name: str = name, order: tuple[int, ...] = order) -> ir.Value | None:
            if not isinstance(v, ir.Load) or v.buffer != name:
                return None
            return replace(v, stored=tuple(v.stored[d] for d in order), index=tuple(v.index[d] for d in order))

        steps = [
            replace(s, value=rewrite(s.value, change))
            if isinstance(s, Stored)
            else replace(s, dims=tuple(s.dims[d] for d in order))
            if s is attended
            else s
            for s in lowered.steps
        ]
        lowered = replace(lowered, steps=tuple(steps))
    return lowered


def library_reads(step: Library) -> list[str]:
    """Return the buffers that a library operator reads."""
    return [*refs(step.node.args), *refs(tuple(value for _, value in step.node.kwargs))]


def order_of(load: ir.Load, tree: ir.Value) -> tuple[int, ...]:
    """Return a load's stored dimensions in the order of the outermost value that has all of their loops, or ().

    The last dimension stays the last.
    """
    plain = [form.terms[0] for form in load.index if isinstance(form, ir.Form) and len(form.terms) == 1]
    if len(plain) < len(load.index) or any(factor != 1 for _, factor in plain):
        return ()
    place = {leaf: d for d, (atom, _) in enumerate(plain) for leaf in atom.leaves()}
    wide = [
        found for v in ir.walk(tree) if place.keys() <= set(found := ir.leaves(a for group in v.dims for a in group))
    ]
    order = tuple(dict.fromkeys(place[leaf] for leaf in wide[-1] if leaf in place)) if wide else ()
    return order if order and order[-1] == len(plain) - 1 else ()


def written_as(made: tuple[ir.Group, ...], load: ir.Load, dims: tuple[ir.Group, ...]) -> tuple[ir.Group, ...] | None:
    """Return the loops of what a step makes in a copy's order and grouping, or None where that is of another kind."""
    forms = [form for form in load.index if isinstance(form, ir.Form)]
    own = [ir.leaves(group) for group in load.stored]
    plain = [ir.leaves(a for a, _ in form.terms) for form in forms] == own
    if not plain or any(f.offset or f.sizes or any(factor != 1 for _, factor in f.terms) for f in forms):
        return None
    place = {leaf: (d, i) for d, leaves in enumerate(own) for i, leaf in enumerate(leaves)}
    out: list[ir.Group] = []
    seen: list[int] = []
    for group in dims:
        left, merged = list(ir.leaves(group)), list[ir.Atom]()
        while left:
            d, _ = place.get(left[0], (-1, 0))
            if d < 0 or tuple(left[: len(own[d])]) != own[d]:
                return None
            merged += made[d]
            seen.append(d)
            del left[: len(own[d])]
        out.append(tuple(merged))
    return tuple(out) if sorted(seen) == [d for d, leaves in enumerate(own) if leaves] else None
