"""The order of dimensions in which values lie that no one but later steps reads.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps, in which a value that is computed from whole rows
(a norm) and is a factor of a product transposed lies as its rows do: stored transposed, neighbouring threads would read
another row each. So does one of sixteen bits that is computed element by element (weights of four bits). Knows nothing
of languages.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from rag_kernels.eval.records import TensorSpec
from rag_kernels.offline.fusion.loops import key_of, reductions
from rag_kernels.offline.fusion.stores.stored_first import is_of_windows
from rag_kernels.offline.fusion.sums.products import factors_of, tile_of
from rag_kernels.offline.graph.subgraph_match import refs_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.steps import Attended, Library, Lowered, Step, Stored, made_by, values_of, with_values

T = TypeVar("T")
MANY = 8  # elements of a value for one of a tensor that is large beside it


def laid_as_read(lowered: Lowered) -> Lowered:
    """Return the steps with temporary values in the order of the rows from which they are computed."""
    orders = {b: order for b in _free(lowered) if (order := _order(lowered, b)) and _suits(lowered, b, order)}
    orders |= _of_scores(lowered) | _of_windows(lowered)
    if not orders:
        return lowered
    specs = {b: replace(lowered.buffers[b], shape=_ordered(lowered.buffers[b].shape, o)) for b, o in orders.items()}

    def change(v: ir.Value) -> ir.Value | None:
        if not isinstance(v, ir.Load) or v.buffer not in orders:
            return None
        order = orders[v.buffer]
        return replace(v, stored=_ordered(v.stored, order), index=_ordered(v.index, order))

    return replace(
        lowered,
        steps=tuple(_laid(_with_values(step, lambda v: rewrite(v, change)), orders, specs) for step in lowered.steps),
        buffers=lowered.buffers | specs,
    )


def _with_values(step: Step, change: Callable[[ir.Value], ir.Value]) -> Step:
    """Return the step with the values that it computes replaced, those of attention too."""
    return replace(step, score=change(step.score)) if isinstance(step, Attended) else with_values(step, change)


def _laid(step: Step, orders: dict[str, tuple[int, ...]], specs: dict[str, TensorSpec]) -> Step:
    """Return a step that stores a value in its order."""
    if not isinstance(step, Stored) or step.buffer not in orders:
        return step
    dims = _ordered(step.value.dims, orders[step.buffer])
    value = ir.Op(dims, step.value.dtype, Operator.SAME, (step.value,))
    return replace(step, value=value, spec=specs[step.buffer])


def _free(lowered: Lowered) -> list[str]:
    """Return the buffers that one step stores whole, and that products or stored values alone read."""
    made = [buffer for step in lowered.steps for buffer in made_by(step)]
    known = {name for step in lowered.steps for name in _read_otherwise(step)}
    whole = [step.buffer for step in lowered.steps if isinstance(step, Stored) and step.slot is None]
    inputs = {argument.name for argument in lowered.problem.arguments}
    return [b for b in whole if made.count(b) == 1 and b not in known and b not in lowered.results and b not in inputs]


def _of_scores(lowered: Lowered) -> dict[str, tuple[int, ...]]:
    """Return the orders of values that attention alone adds to its scores (a bias of pairs, computed for all heads):
    heads first, then queries, and keys side by side.
    """
    made = [buffer for step in lowered.steps for buffer in made_by(step)]
    kept = {*lowered.results, *(argument.name for argument in lowered.problem.arguments)}
    found = dict[str, set[tuple[int, ...]]]()
    for step in lowered.steps:
        values = values_of(step)
        for v in ir.walk(*values, *([step.score] if isinstance(step, Attended) else [])):
            if isinstance(v, ir.Load):
                read = isinstance(step, Attended) and v not in {step.q, step.k, step.v, step.scores}
                found.setdefault(v.buffer, set()).add(_of_score(step, v) if read and isinstance(step, Attended) else ())
        for buffer in refs_of(step.node) if isinstance(step, Library) else ():
            found.setdefault(buffer, set()).add(())
    whole = {step.buffer for step in lowered.steps if isinstance(step, Stored) and step.slot is None}
    alone = {buffer: next(iter(orders)) for buffer, orders in found.items() if len(orders) == 1 and buffer in whole}
    return {b: order for b, order in alone.items() if order and made.count(b) == 1 and b not in kept}


def _of_windows(lowered: Lowered) -> dict[str, tuple[int, ...]]:
    """Return the orders of what windows come to where the same nest stores along its images too, and only nests without
    windows and rows read it: these read across what they write through tiles; a nest writes all across, or all along.
    """
    made = [buffer for step in lowered.steps for buffer in made_by(step)]
    kept = {*lowered.results, *(argument.name for argument in lowered.problem.arguments)}
    for step in lowered.steps:
        if isinstance(step, Library):
            kept |= {*refs_of(step.node)}
            continue
        values = (*values_of(step), *([step.score] if isinstance(step, Attended) else []))
        found = reductions(step.value) if isinstance(step, Stored) else []
        point = isinstance(step, Stored) and all(map(tile_of, found))
        for v in ir.walk(*values):
            half = isinstance(v, ir.Load) and lowered.buffers[v.buffer].dtype in HALF if found else True
            if isinstance(v, ir.Load) and not (point and half and all(map(_is_plain, v.index))):
                kept.add(v.buffer)
    stored = [s for s in lowered.steps if isinstance(s, Stored) and s.slot is None and is_of_windows(s.value)]
    orders = {s.buffer: order_of_loads(s.value) for s in stored}
    straight = {v for s in stored if not orders[s.buffer] for v in reductions(s.value)}
    turned = [s.buffer for s in stored if orders[s.buffer] and not straight.isdisjoint(reductions(s.value))]
    return {buffer: orders[buffer] for buffer in turned if buffer not in kept and made.count(buffer) == 1}


def _of_score(step: Attended, value: ir.Load) -> tuple[int, ...]:
    """Return the order of a value's dimensions in which its keys lie side by side; nothing where they do already."""
    forms = [form for form in value.index if isinstance(form, ir.Form) and _is_plain(form)]
    along = [{leaf for atom, _ in form.terms for leaf in atom.leaves()} for form in forms]
    keys, others = set(ir.leaves(step.keys)), {leaf for load in (step.k, step.v) for leaf in _leaves_of(load)}
    rows = set(_leaves_of(step.q)) - others
    if len(along) < len(value.index) or not any(keys & leaves for leaves in along) or keys & along[-1]:
        return ()
    return tuple(sorted(range(len(along)), key=lambda d: 2 if keys & along[d] else bool(rows & along[d])))


def _leaves_of(load: ir.Load) -> list[ir.Atom]:
    """Return the loops over which a load runs."""
    return [
        leaf for form in load.index if isinstance(form, ir.Form) for atom, _ in form.terms for leaf in atom.leaves()
    ]


def _read_otherwise(step: Step) -> list[str]:
    """Return the buffers that a step reads otherwise than at plain places for a value that it stores."""
    match step:
        case Library():
            return refs_of(step.node)
        case Attended():
            values: tuple[ir.Value, ...] = (*values_of(step), step.score)
        case _:
            values = values_of(step)
    loads = [v for v in ir.walk(*values) if isinstance(v, ir.Load)]
    return [v.buffer for v in loads if not isinstance(step, Stored) or not all(map(_is_plain, v.index))]


def _suits(lowered: Lowered, buffer: str, order: tuple[int, ...]) -> bool:
    """Return whether an order is as well for all that read a buffer: products, whose factors take either, and values
    that have the buffer's innermost loop innermost, too.
    """
    for step in lowered.steps:
        if isinstance(step, Stored):
            products = [factors_of(v) for v in reductions(step.value) if tile_of(v)]
            factors = {strip(factor) for pair in products if pair for factor in pair}
            last = {leaf for group in step.value.dims[-1:] for leaf in ir.leaves(group)[-1:]}
            for v in ir.walk(step.value):
                form = (
                    v.index[order[-1]] if isinstance(v, ir.Load) and v.buffer == buffer and v not in factors else None
                )
                if isinstance(form, ir.Form) and not {a.leaves()[-1] for a, _ in form.terms[-1:]} & last:
                    return False
    return True


def _is_plain(form: ir.Form | ir.Value) -> bool:
    """Return whether a place along a dimension is that of loops, of which none is a window's."""
    return isinstance(form, ir.Form) and not any(leaf.window for atom, _ in form.terms for leaf in atom.leaves())


def _order(lowered: Lowered, buffer: str) -> tuple[int, ...]:
    """Return the order of dimensions in which a value lies as it is read; nothing where it does already."""
    value = next(step.value for step in lowered.steps if isinstance(step, Stored) and step.buffer == buffer)
    found = reductions(value)
    groups = [ir.leaves(group) for group in value.dims]
    if not found:
        return order_of_loads(value) if lowered.buffers[buffer].dtype in HALF else ()
    reduced = {leaf for v in found if not tile_of(v) for leaf in key_of(v)[1]}
    loops = [leaf for group in groups for leaf in group]
    for v in ir.walk(value) if reduced & set(loops) else ():
        if not isinstance(v, ir.Load) or not all(isinstance(form, ir.Form) for form in v.index):
            continue
        read = [leaf for f in v.index if isinstance(f, ir.Form) for a, _ in f.terms for leaf in a.leaves()]
        if sorted(read, key=id) == sorted(loops, key=id) and read[-1] in reduced:
            order = tuple(sorted(range(len(groups)), key=lambda i: read.index(groups[i][0]) if groups[i] else -1))
            return order if order != tuple(range(len(groups))) and _ordered(groups, order)[-1][-1] in reduced else ()
    return ()


def order_of_loads(value: ir.Value) -> tuple[int, ...]:
    """Return the order in which the last dimension is the one along which all large tensors lie that a value is of.

    Products of sixteen bits take their factors in either order. Nothing where the order is so already.
    """
    groups = [ir.leaves(group) for group in value.dims]
    every, last = ir.size_of(leaf for group in groups for leaf in group), set[ir.Atom]()
    for v in ir.walk(value):
        if isinstance(v, ir.Load) and MANY * ir.size_of(leaf for group in v.stored for leaf in group) >= every:
            read = [leaf for leaf in _leaves_of(v) if not leaf.window]
            if not read or not all(isinstance(form, ir.Form) for form in v.index):
                return ()
            last.add(read[-1])
    along = [d for d, group in enumerate(groups) if last and last <= set(group)]
    rest = [d for d in range(len(groups)) if d not in along]
    return (*rest, *along) if along and any(groups[d] for d in rest[along[0] :]) else ()


def _ordered(items: Sequence[T], order: tuple[int, ...]) -> tuple[T, ...]:
    return tuple(items[i] for i in order)
