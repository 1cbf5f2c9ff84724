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
        return lowering.tracked(ir.Reduce(window.dims, value.dtype, "max", window, over, guards))

    return rule


def avg_pool(rank: int) -> Rule:
    """Return the rule of average pooling over `rank` dimensions."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        sizes = per_dimension(given(node, 1), rank, None)
        strides = per_dimension(given(node, 2, "stride"), rank, tuple(sizes))
        pads = per_dimension(given(node, 3, "padding", 0), rank, 0)
        divisor = given(node, 6, "divisor_override") or math.prod(sizes)
        counted = given(node, 5, "count_include_pad", True) or not any(pads)
        if given(node, 4, "ceil_mode", False) or not counted:
            raise ir.Unfusable("a divisor that varies")
        value = lowering.value(given(node, 0))
        window, over, guards = windows(lowering, value, sizes, strides, pads, [1] * rank, node.outputs[0].shape)
        total = lowering.tracked(ir.Reduce(window.dims, value.dtype, "sum", window, over, guards))
        return lowering.op(lambda total: total / divisor, total)

    return rule


def adaptive_avg_pool(rank: int) -> Rule:
    """Return the rule of adaptive average pooling over `rank` dimensions, for windows of equal size."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value, out = lowering.value(given(node, 0)), node.outputs[0].shape
        shape, dims = list(value.shape[:-rank]), []
        for size, target in zip(value.shape[-rank:], out[-rank:], strict=True):
            if size % target:
                raise ir.Unfusable("windows of unequal sizes")
            shape += [target, size // target]
            dims.append(len(shape) - 1)
        split_ = lowering.view(value, shape, fixed=[d - 1 for d in dims])
        return mean_of(lowering, split_, dims, False)

    return rule
