"""Rules for pooling: windows are small reduced loops.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. Knows nothing of loops' order or of C++.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from rag_kernels.eval.records import Node
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import div, hit_place, maximum, minimum, sub
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.rules_reduce import mean_of


def per_dimension(value: Any, rank: int, default: Any) -> list[int]:
    """Return one number for each of `rank` dimensions, from one number, a tuple, or the default."""
    value = default if value is None or value == () else value
    items = list(value) if isinstance(value, tuple | list) else [value]
    return items * rank if len(items) == 1 else items


def constant_form(form: ir.Form, group: ir.Group) -> Callable[[], tuple[ir.Form, ir.Group]]:
    """Return a function that returns this form and group, for `Lowering.reindex`."""
    return lambda: (form, group)


def windows(
    lowering: Lowering,
    value: ir.Value,
    sizes: list[int],
    strides: list[int],
    pads: list[int],
    dilations: list[int],
    out: Any,
) -> tuple[ir.Value, ir.Group, tuple[ir.Index, ...]]:
    """Return the value read at `o * stride - pad + k * dilation` on the last dimensions, the loops of k, and guards."""
    rank = len(sizes)
    over: list[ir.Atom] = []
    guards: list[ir.Index] = []
    for i in range(rank):
        dim = len(value.dims) - rank + i
        size = value.shape[dim]
        o = () if out[dim] == 1 else (ir.Atom(out[dim]),)
        k = () if sizes[i] == 1 else (ir.Atom(sizes[i], fixed=True, window=True),)
        terms = tuple((a, strides[i]) for a in o) + tuple((a, dilations[i]) for a in k)
        form = ir.Form(terms, -pads[i])
        last = (out[dim] - 1) * strides[i] - pads[i] + (sizes[i] - 1) * dilations[i]
        limit = value.dims[dim]
        value = lowering.reindex(value, dim, constant_form(form, o))
        over += k
        if pads[i] or last >= size:
            guards.append(ir.Index((), "bool", form, limit))
    return value, tuple(over), tuple(guards)


def max_pool(rank: int) -> Rule:
    """Return the rule of max pooling over `rank` dimensions."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        sizes = per_dimension(given(node, 1), rank, None)
        strides = per_dimension(given(node, 2, "stride"), rank, tuple(sizes))
        pads = per_dimension(given(node, 3, "padding", 0), rank, 0)
        dilations = per_dimension(given(node, 4, "dilation", 1), rank, 1)
        value = lowering.value(given(node, 0))
        window, over, guards = windows(lowering, value, sizes, strides, pads, dilations, node.outputs[0].shape)
        return lowering.tracked(ir.Reduce(window.dims, value.dtype, Kind.MAX, window, over, guards))

    return rule


def max_pool_with_indices(rank: int) -> Rule:
    """Return the rule of max pooling with where in an image each maximum stands first."""

    def rule(lowering: Lowering, node: Node) -> tuple[ir.Value, ir.Value]:
        sizes = per_dimension(given(node, 1), rank, None)
        strides = per_dimension(given(node, 2, "stride"), rank, tuple(sizes))
        pads = per_dimension(given(node, 3, "padding", 0), rank, 0)
        dilations = per_dimension(given(node, 4, "dilation", 1), rank, 1)
        value = lowering.value(given(node, 0))
        if any(len(ir.leaves(group)) > 1 for group in value.dims):
            value = lowering.reload(value)
        lengths = value.dims[-rank:]
        window, over, guards = windows(lowering, value, sizes, strides, pads, dilations, node.outputs[0].shape)
        best = lowering.tracked(ir.Reduce(window.dims, value.dtype, Kind.MAX, window, over, guards))
        taps = iter(over)
        place: ir.Value = ir.Const((), "int64", 0)
        for i, group in enumerate(lengths):
            tap = (next(taps),) if sizes[i] > 1 else ()
            terms = tuple((a, strides[i]) for a in window.dims[len(window.dims) - rank + i])
            form = ir.Form((*terms, *((a, dilations[i]) for a in tap)), -pads[i])
            here = ir.Index((), "int64", form)
            place = lowering.op(lambda at, n, here: at * n + here, place, lowering.size(group, "int64"), here)
        hit = lowering.op(hit_place, window, best, place)
        return best, lowering.tracked(ir.Reduce(window.dims, "int64", Kind.MIN, hit, over, guards))

    return rule


def avg_pool(rank: int) -> Rule:
    """Return the rule of average pooling over `rank` dimensions."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        sizes = per_dimension(given(node, 1), rank, None)
        strides = per_dimension(given(node, 2, "stride"), rank, tuple(sizes))
        pads = per_dimension(given(node, 3, "padding", 0), rank, 0)
        divisor, ceil = given(node, 6, "divisor_override"), given(node, 4, "ceil_mode", False)
        padded = given(node, 5, "count_include_pad", True)
        value, shape = lowering.value(given(node, 0)), node.outputs[0].shape
        window, over, guards = windows(lowering, value, sizes, strides, pads, [1] * rank, shape)
        total = window
        if over:
            total = lowering.tracked(ir.Reduce(window.dims, value.dtype, Kind.SUM, window, over, guards))
        if divisor is not None or (not ceil and (padded or not any(pads))):
            return lowering.op(lambda total: total / (divisor or math.prod(sizes)), total)
        for i, window_ in enumerate(zip(sizes, strides, pads, strict=True)):
            dim = len(shape) - rank + i
            count = counted(lowering, total.dims[dim], value.dims[dim], window_, padded)
            count = lowering.with_dims(count, (total.dims[dim], *[()] * (rank - 1 - i)))
            total = lowering.op(div, total, lowering.cast(count, value.dtype))
        return total

    return rule


def counted(
    lowering: Lowering, out: ir.Group, source: ir.Group, window: tuple[int, int, int], padded: bool
) -> ir.Value:
    """Return how many places of each window along a dimension count: those in the tensor, or in its padding too."""
    size, stride, pad = window
    first = lowering.tracked(ir.Index((out,), "int64", ir.Form(tuple((a, stride) for a in out), -pad)))
    length = lowering.size(source, "int64")
    end = lowering.op(lambda first, length: minimum(first + size, length + pad), first, length)
    if padded:
        return lowering.op(sub, end, first)
    return lowering.op(lambda first, end, length: minimum(end, length) - maximum(first, 0), first, end, length)


def adaptive_avg_pool(rank: int) -> Rule:
    """Return the rule of adaptive average pooling over `rank` dimensions, for windows of equal size."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value, out = lowering.value(given(node, 0)), node.outputs[0].shape
        shape, dims = list(value.shape[:-rank]), []
        for i, (size, target) in enumerate(zip(value.shape[-rank:], out[-rank:], strict=True)):
            if target % size == 0:  # each element several times
                dim = len(out) - rank + i
                group = (*value.dims[dim], *([ir.Atom(target // size, fixed=True)] if target > size else []))
                value = lowering.with_dims(value, (*value.dims[:dim], group, *value.dims[dim + 1 :]))
                shape.append(target)
                continue
            if size % target:
                raise ir.Unfusable("windows of unequal sizes")
            shape += [target, size // target]
            dims.append(len(shape) - 1)
        split_ = lowering.view(value, shape, fixed=[d - 1 for d in dims])
        return mean_of(lowering, split_, dims, False)

    return rule
