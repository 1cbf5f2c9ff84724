"""Rules for windows whose places are computed: adaptive pools of any sizes, and what average pools give back.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. An element of the result is a sum over few places along each dimension, of which some may not count.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from rag_kernels.eval.records import Node
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import Expr, both, div, maximum, minimum, quotient, where
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.computed import at
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.rules.pool import PASS_TAPS, UNIT, Window, counts, per_dimension, pooled
from rag_kernels.offline.lowering.rules.reduce import mean_of


@dataclass(frozen=True, slots=True)
class Along:
    """Which places an element of the result adds up along one dimension.

    `place` and `counts` take the element's index, the number of the place among `taps`, how many elements the summed
    tensor has there, and how many the result has.
    """

    dim: int
    size: int  # of the result
    taps: int
    place: Callable[[Expr, Expr, Expr, Expr], Expr]
    counts: Callable[[Expr, Expr, Expr, Expr], Expr]
    fixed: bool = False


def summed(lowering: Lowering, value: ir.Value, along: Sequence[Along]) -> ir.Value:
    """Return the sums over places: along all dimensions at once, or one after the other where there are many."""
    if math.prod(a.taps for a in along) <= PASS_TAPS:
        return summed_at_once(lowering, value, along)
    for one in along:
        value = summed_at_once(lowering, value, [one])
    return value


def summed_at_once(lowering: Lowering, value: ir.Value, along: Sequence[Along]) -> ir.Value:
    """Return the sums over places along all of these dimensions, in one reduction."""
    groups: dict[int, ir.Group] = {}
    over: list[ir.Atom] = []
    conditions: list[ir.Value] = []
    for a in along:
        trailing = [()] * (len(value.dims) - 1 - a.dim)
        groups[a.dim] = () if a.size == 1 else (ir.Atom(a.size, a.fixed),)
        taps = () if a.taps == 1 else (ir.Atom(a.taps, fixed=True, window=True),)
        here = lowering.tracked(ir.Index((groups[a.dim], *trailing), "int64", form_of(groups[a.dim])))
        tap = lowering.tracked(ir.Index((taps, (), *trailing), "int64", form_of(taps)))
        sizes = lowering.size(value.dims[a.dim], "int64"), lowering.size(groups[a.dim], "int64")
        loops = ((*groups[a.dim], *taps), *trailing)
        place = lowering.with_dims(lowering.op(a.place, here, tap, *sizes), loops)
        place = lowering.op(lambda place, size: minimum(maximum(place, 0), size - 1), place, sizes[0])
        conditions.append(lowering.with_dims(lowering.op(a.counts, here, tap, *sizes), loops))
        value = at(lowering, value, a.dim, place, loops[0])
        over += taps
    for condition in conditions:
        value = lowering.op(lambda counts, x: where(counts, x, 0), condition, value)
    dims = tuple(groups.get(d, group) for d, group in enumerate(value.dims))
    if not over:
        return lowering.with_dims(value, dims)
    return lowering.tracked(ir.Reduce(dims, value.dtype, Kind.SUM, value, tuple(over)))


def form_of(group: ir.Group) -> ir.Form:
    """Return the index along these loops."""
    return ir.Form(tuple((atom, 1) for atom in group))


# Average pools, back ------------------------------------------------------------------------------------------------


def avg_pool_backward(rank: int) -> Rule:
    """Return the rule of what average pooling over `rank` dimensions gives back."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        grad, shape = lowering.value(given(node, 0)), node.outputs[0].shape
        sizes = per_dimension(given(node, 2), rank, None)
        strides = per_dimension(given(node, 3, "stride"), rank, tuple(sizes))
        pads = per_dimension(given(node, 4, "padding", 0), rank, 0)
        ceil, padded, divisor = given(node, 5), given(node, 6), given(node, 7)
        windows = [Window(*each) for each in zip(sizes, strides, pads, strict=True)]
        lead = len(shape) - rank
        share, whole = grad, divisor or math.prod(sizes)
        alike = divisor is not None or (not ceil and (padded or not any(pads)))
        if not alike:
            source = [() if n == 1 else (ir.Atom(n),) for n in shape[lead:]]
            places = counts(lowering, grad.dims[lead:], source, windows, padded)
            share = lowering.op(div, grad, lowering.cast(places, grad.dtype))
        if all(w.stride == 1 and w.pad < w.size for w in windows):  # sums over windows too
            total = pooled(lowering, share, Kind.SUM, [Window(w.size, 1, w.size - 1 - w.pad) for w in windows], shape)
        else:
            moved = [(lead + i, w) for i, w in enumerate(windows) if (w.size, w.stride, w.pad) != UNIT]
            total = summed(lowering, share, [backwards(dim, shape[dim], w) for dim, w in moved])
        return lowering.op(lambda total: total / whole, total) if alike else total

    return rule


def backwards(dim: int, size: int, window: Window) -> Along:
    """Return the windows in which an element lies: the last that begins before it, and those before that one."""

    def place(here: Expr, tap: Expr, _: Expr, __: Expr) -> Expr:
        return quotient(here + window.pad, window.stride) - tap

    def covers(here: Expr, tap: Expr, windows: Expr, size: Expr) -> Expr:
        found = place(here, tap, windows, size)
        inside = both(found >= 0, found < windows)
        return both(inside, here + window.pad - found * window.stride < window.size)

    return Along(dim, size, -(-window.size // window.stride), place, covers)


# Adaptive average pools ----------------------------------------------------------------------------------------------


def adaptive_avg_pool(rank: int) -> Rule:
    """Return the rule of adaptive average pooling over `rank` dimensions."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value, out = lowering.value(given(node, 0)), node.outputs[0].shape
        if any(n % m and m % n for n, m in zip(value.shape[-rank:], out[-rank:], strict=True)):
            return uneven_avg_pool(lowering, value, out, rank)
        shape, dims = list(value.shape[:-rank]), []
        for i, (size, target) in enumerate(zip(value.shape[-rank:], out[-rank:], strict=True)):
            if target % size == 0:  # each element several times
                dim = len(out) - rank + i
                group = (*value.dims[dim], *([ir.Atom(target // size, fixed=True)] if target > size else []))
                value = lowering.with_dims(value, (*value.dims[:dim], group, *value.dims[dim + 1 :]))
                shape.append(target)
                continue
            shape += [target, size // target]
            dims.append(len(shape) - 1)
        split_ = lowering.view(value, shape, fixed=[d - 1 for d in dims])
        return mean_of(lowering, split_, dims, False)

    return rule


def uneven_avg_pool(lowering: Lowering, value: ir.Value, shape: tuple[int, ...], rank: int) -> ir.Value:
    """Return adaptive average pooling to this shape, whose windows may differ by one element.

    Their largest size is a number of the kernel, which serves no other sizes of the tensor.
    """
    lead = len(shape) - rank
    moved = [d for d in range(lead, len(shape)) if value.shape[d] != shape[d]]
    most = {d: max(ends(i, value.shape[d], shape[d]) for i in range(shape[d])) for d in moved}
    fix(value.dims[d] for d in moved)
    total = summed(lowering, value, [Along(d, shape[d], most[d], adaptive_place, adaptive_counts, True) for d in moved])
    for d in moved:
        total = lowering.op(div, total, adaptive_length(lowering, total, d, value.dims[d]))
    return total


def ends(window: int, size: int, windows: int) -> int:
    """Return how many elements a window of an adaptive pool has."""
    return -(-(window + 1) * size // windows) - window * size // windows


def fix(groups: Iterable[ir.Group]) -> None:
    """Make these loops' sizes numbers of the kernel."""
    for group in groups:
        for leaf in ir.leaves(group):
            leaf.fixed = True


def begin(window: Expr, size: Expr, windows: Expr) -> Expr:
    return quotient(window * size, windows)


def end(window: Expr, size: Expr, windows: Expr) -> Expr:
    return quotient((window + 1) * size + windows - 1, windows)


def adaptive_place(window: Expr, tap: Expr, size: Expr, windows: Expr) -> Expr:
    return begin(window, size, windows) + tap


def adaptive_counts(window: Expr, tap: Expr, size: Expr, windows: Expr) -> Expr:
    return begin(window, size, windows) + tap < end(window, size, windows)


def adaptive_length(lowering: Lowering, value: ir.Value, dim: int, source: ir.Group) -> ir.Value:
    """Return how many elements each window of an adaptive pool has along a dimension of its result."""
    group = value.dims[dim]
    here = lowering.tracked(ir.Index((group, *[()] * (len(value.dims) - 1 - dim)), "int64", form_of(group)))
    sizes = lowering.size(source, "int64"), lowering.size(group, "int64")
    length = lowering.op(lambda i, n, m: end(i, n, m) - begin(i, n, m), here, *sizes)
    return lowering.cast(length, value.dtype)


def adaptive_avg_pool_backward(rank: int) -> Rule:
    """Return the rule of what adaptive average pooling over `rank` dimensions gives back."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        share, shape = lowering.value(given(node, 0)), node.outputs[0].shape
        moved = [d for d in range(len(shape) - rank, len(shape)) if share.shape[d] != shape[d]]
        if any(share.shape[d] > shape[d] for d in moved):
            raise ir.Unfusable("windows of parts of elements")
        for d in moved:
            source = () if shape[d] == 1 else (ir.Atom(shape[d]),)
            share = lowering.op(div, share, adaptive_length(lowering, share, d, source))
        return summed(lowering, share, [adaptive_backwards(d, shape[d], share.shape[d]) for d in moved])

    return rule


def adaptive_backwards(dim: int, size: int, windows: int) -> Along:
    """Return the windows of an adaptive pool in which an element lies: one, and where they overlap one beside it."""
    around = 0 if windows == 1 else 1

    def place(here: Expr, tap: Expr, windows: Expr, size: Expr) -> Expr:
        return quotient(here * windows, size) + tap - around

    def covers(here: Expr, tap: Expr, windows: Expr, size: Expr) -> Expr:
        found = place(here, tap, windows, size)
        inside = both(found >= 0, found < windows)
        return both(inside, both(begin(found, size, windows) <= here, here < end(found, size, windows)))

    return Along(dim, size, 1 + 2 * around, place, covers)
