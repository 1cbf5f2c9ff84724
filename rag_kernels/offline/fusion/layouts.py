"""The order of dimensions in which values lie that no one but later steps reads.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps, in which a value that is computed from whole rows
(a norm) and is a factor of a product transposed lies as its rows do: stored transposed, neighbouring threads would read
another row each. Knows nothing of languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TypeVar

from rag_kernels.eval.records import TensorSpec
from rag_kernels.offline.fusion.loops import key_of, reductions
from rag_kernels.offline.fusion.products import factors_of, tile_of
from rag_kernels.offline.graph.subgraph_match import refs_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.steps import Attended, Library, Lowered, Step, Stored, made_by, values_of, with_values

T = TypeVar("T")


def laid_as_read(lowered: Lowered) -> Lowered:
    """Return the steps with temporary values in the order of the rows from which they are computed."""
    orders = {buffer: order for buffer in _free(lowered) if (order := _order(lowered, buffer))}
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
        steps=tuple(_laid(with_values(step, lambda v: rewrite(v, change)), orders, specs) for step in lowered.steps),
        buffers=lowered.buffers | specs,
    )


def _laid(step: Step, orders: dict[str, tuple[int, ...]], specs: dict[str, TensorSpec]) -> Step:
    """Return a step that stores a value in its order."""
    if not isinstance(step, Stored) or step.buffer not in orders:
        return step
    dims = _ordered(step.value.dims, orders[step.buffer])
    value = ir.Op(dims, step.value.dtype, Operator.SAME, (step.value,))
    return replace(step, value=value, spec=specs[step.buffer])


def _free(lowered: Lowered) -> list[str]:
    """Return the buffers that one step stores whole, and that products alone read."""
    made = [buffer for step in lowered.steps for buffer in made_by(step)]
    known = {name for step in lowered.steps for name in _read_otherwise(step)}
    whole = [step.buffer for step in lowered.steps if isinstance(step, Stored) and step.slot is None]
    inputs = {argument.name for argument in lowered.problem.arguments}
    return [b for b in whole if made.count(b) == 1 and b not in known and b not in lowered.results and b not in inputs]


def _read_otherwise(step: Step) -> list[str]:
    """Return the buffers that a step reads otherwise than as the factor of a product, which takes either order."""
    factors = set[ir.Value]()
    match step:
        case Library():
            return refs_of(step.node)
        case Attended():
            values: tuple[ir.Value, ...] = (*values_of(step), step.score)
        case _:
            values = values_of(step)
    if isinstance(step, Stored):
        products = [factors_of(v) for v in reductions(step.value) if tile_of(v)]
        factors = {strip(factor) for pair in products if pair for factor in pair}
    loads = [v for v in ir.walk(*values) if isinstance(v, ir.Load)]
    return [v.buffer for v in loads if v not in factors or not all(_is_plain(form) for form in v.index)]


def _is_plain(form: ir.Form | ir.Value) -> bool:
    """Return whether a place along a dimension is that of loops, of which none is a window's."""
    return isinstance(form, ir.Form) and not any(leaf.window for atom, _ in form.terms for leaf in atom.leaves())


def _order(lowered: Lowered, buffer: str) -> tuple[int, ...]:
    """Return the order of dimensions in which a value lies as it is read; nothing where it does already."""
    value = next(step.value for step in lowered.steps if isinstance(step, Stored) and step.buffer == buffer)
    reduced = {leaf for v in reductions(value) if not tile_of(v) for leaf in key_of(v)[1]}
    groups = [ir.leaves(group) for group in value.dims]
    loops = [leaf for group in groups for leaf in group]
    for v in ir.walk(value) if reduced & set(loops) else ():
        if not isinstance(v, ir.Load) or not all(isinstance(form, ir.Form) for form in v.index):
            continue
        read = [leaf for f in v.index if isinstance(f, ir.Form) for a, _ in f.terms for leaf in a.leaves()]
        if sorted(read, key=id) == sorted(loops, key=id) and read[-1] in reduced:
            order = tuple(sorted(range(len(groups)), key=lambda i: read.index(groups[i][0]) if groups[i] else -1))
            return order if order != tuple(range(len(groups))) and _ordered(groups, order)[-1][-1] in reduced else ()
    return ()


def _ordered(items: Sequence[T], order: tuple[int, ...]) -> tuple[T, ...]:
    return tuple(items[i] for i in order)
