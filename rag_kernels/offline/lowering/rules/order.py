"""Rules of operators that need an order: sorts, the first few, order statistics, and places in what is sorted.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's values, or `ir.Unfusable` with the
reason. A sort is a step of its own (`steps.Ordered`); a place in a sorted row is a chain of comparisons.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from rag_kernels.eval.records import Node, Ref
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import is_float
from rag_kernels.offline.ir.expressions import Expr, both, cast, inverse, quotient, where
from rag_kernels.offline.lowering.arguments import out_dtype
from rag_kernels.offline.lowering.computed import apart, loop
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.rules.norm import gather_along
from rag_kernels.offline.lowering.rules.shape import slice_value

LARGER = 3  # doublings of a sorted row that its comparisons serve as well


def several(lowering: Lowering, argument: object) -> ir.Value:
    """Return a tensor of at least one dimension."""
    assert isinstance(argument, Ref)
    value = lowering.value(argument)
    if not value.dims:
        raise ir.Unfusable("a single number")
    return value


def sort(lowering: Lowering, node: Node) -> tuple[ir.Value, ir.Value]:
    value, stable = several(lowering, given(node, 0)), node.op.endswith(".stable")
    dim = given(node, 2 if stable else 1, "dim", -1)
    descending = bool(given(node, 3 if stable else 2, "descending", False))
    return lowering.ordered(value, dim, None, descending=descending, storage=node.outputs[0].dtype)


def argsort(lowering: Lowering, node: Node) -> ir.Value:
    value, stable = several(lowering, given(node, 0)), node.op.endswith(".stable")
    keywords = dict(node.kwargs)
    positional = [a for a in node.args[1:] if not (stable and "stable" not in keywords and a is node.args[1])]
    dim = positional[0] if positional else keywords.get("dim", -1)
    descending = positional[1] if len(positional) > 1 else keywords.get("descending", False)
    assert isinstance(dim, int)
    return lowering.ordered(value, dim, None, descending=bool(descending))[1]


def msort(lowering: Lowering, node: Node) -> ir.Value:
    return lowering.ordered(several(lowering, given(node, 0)), 0, None, descending=False)[0]


def topk(lowering: Lowering, node: Node) -> tuple[ir.Value, ir.Value]:
    """Return the first few of an order, also where they are wanted in any."""
    value, count = several(lowering, given(node, 0)), given(node, 1)
    if not isinstance(count, int) or count < 1:
        raise ir.Unfusable("a count that is no number")
    largest = bool(given(node, 3, "largest", True))
    return lowering.ordered(value, given(node, 2, "dim", -1), count, descending=largest, storage=node.outputs[0].dtype)


def kthvalue(lowering: Lowering, node: Node) -> tuple[ir.Value, ...]:
    value, k, dim = several(lowering, given(node, 0)), given(node, 1), given(node, 2, "dim", -1)
    if not isinstance(k, int):
        raise ir.Unfusable("a rank that is no number")
    dim, keep = dim % len(value.dims), bool(given(node, 3, "keepdim", False))
    found = of_ranks(lowering, value, dim, [ir.Const((), "int64", k - 1)], nans=False)
    return tuple(with_one(lowering, v, dim) if keep else v for v in found)


def of_ranks(
    lowering: Lowering, value: ir.Value, dim: int, ranks: Sequence[ir.Value], *, nans: bool
) -> tuple[ir.Value, ir.Value]:
    """Return the elements of some ranks in place of a dimension, and their indices; of one without the dimension."""
    if value.dims[dim]:
        return lowering.ranked(value, dim, ranks, nans=nans)
    between = (loop(len(ranks)),) if len(ranks) > 1 else ()
    several = (*value.dims[:dim], *between, *value.dims[dim + 1 :])
    return lowering.with_dims(value, several), lowering.with_dims(ir.Const((), "int64", 0), several)


def without(lowering: Lowering, value: ir.Value, dim: int, *, keep: bool) -> ir.Value:
    """Return the value without a dimension of one element, unless it is kept."""
    return value if keep else lowering.with_dims(value, (*value.dims[:dim], *value.dims[dim + 1 :]))


def with_one(lowering: Lowering, value: ir.Value, dim: int) -> ir.Value:
    """Return the value with a dimension of one element more."""
    return lowering.with_dims(value, (*value.dims[:dim], (), *value.dims[dim:]))


def flat(lowering: Lowering, value: ir.Value) -> ir.Value:
    """Return the value in one dimension, stored first where that is more than one loop."""
    found = lowering.view(value, (math.prod(value.shape),))
    return found if len(ir.leaves(found.dims[0])) < 2 else lowering.reload(found)


def median(lowering: Lowering, node: Node) -> ir.Value | tuple[ir.Value, ...]:
    """Return the lower of the middle elements, with its index where it is one of a dimension; a NaN wins."""
    value, whole = several(lowering, given(node, 0)), given(node, 1, "dim") is None
    value = flat(lowering, value) if whole else value
    dim = 0 if whole else given(node, 1, "dim") % len(value.dims)
    size = lowering.size(value.dims[dim], "int64")
    middle = lowering.op(lambda n: quotient(n - 1, 2), size)
    found = of_ranks(lowering, value, dim, [middle], nans=is_float(value.dtype))
    if whole:
        return found[0]
    return tuple(with_one(lowering, v, dim) if given(node, 2, "keepdim", False) else v for v in found)


def quantile(lowering: Lowering, node: Node) -> ir.Value:
    """Return one quantile, between the two elements around its rank; NaN among a lane's elements is the result."""
    value, q = several(lowering, given(node, 0)), given(node, 1)
    how = given(node, 4, "interpolation", "linear")
    if not isinstance(q, float | int) or how != "linear" or not is_float(value.dtype):
        raise ir.Unfusable("quantiles of another form")
    whole = given(node, 2, "dim") is None
    keep = bool(given(node, 3, "keepdim", False))
    if whole and keep:
        raise ir.Unfusable("quantiles of another form")
    value = flat(lowering, value) if whole else value
    dim = 0 if whole else given(node, 2, "dim") % len(value.dims)
    size = lowering.size(value.dims[dim], value.dtype)
    rank = lowering.op(lambda n: (n - 1) * q, size)
    low = lowering.cast(rank, "int64")
    high = lowering.op(lambda r, i: where(r > cast(i, r.dtype), i + 1, i), rank, low)
    elements, _ = of_ranks(lowering, value, dim, [low, high], nans=True)
    below, above = (slice_value(lowering, elements, dim, place, 1) for place in (0, 1))
    part = lowering.op(lambda r, i: r - i, rank, lowering.cast(low, value.dtype))

    def between(a: Expr, b: Expr, w: Expr) -> Expr:
        return where(w < 0.5, a + w * (b - a), b - (b - a) * (1 - w))

    out = lowering.op(between, below, above, part)
    return lowering.with_dims(out, ()) if whole else without(lowering, out, dim, keep=keep)


# Places in what is sorted -------------------------------------------------------------------------------------------


def sorted_place(lowering: Lowering, row: ir.Value, value: ir.Value, *, right: bool) -> ir.Value:
    """Return how many elements of a sorted row are below `value`, with `right` those that equal it too.

    `row` is of one dimension, or has those of `value` but for the last. Comparisons halve what is left; there are so
    many that they serve rows `2 ** LARGER` times as long, and longer ones are refused.
    """
    row = apart(lowering, row)
    group = row.dims[-1]
    if not group:
        raise ir.Unfusable("a sorted row of one element")
    rows, leaf = row.dims[:-1], ir.leaves(group)[0]
    bits = leaf.size.bit_length() + LARGER
    leaf.most = (1 << bits) - 1
    for ours, theirs in zip(rows, value.dims[:-1], strict=False):
        if ours and theirs:
            lowering.loops.unify(theirs, ours)
    narrow = "int32" if bits < 31 else "int64"  # a GPU computes with 32 bits at a time
    size = lowering.size(group, narrow)
    place: ir.Value = ir.Const((), narrow, 0)
    picks: list[ir.Form | ir.Value] = list(row.index)
    dims = value.dims
    for bit in reversed(range(bits)):
        step = 1 << bit
        reached = lowering.op(lambda i, step=step: i + step, place)
        picks[-1] = lowering.op(lambda i, n: where(i > n, n, i) - 1, reached, size)
        load = lowering.tracked(ir.Load(dims, row.dtype, row.buffer, row.stored, tuple(picks), row.storage))
        goes = lowering.op(
            lambda i, n, a, v: both(i <= n, inverse(a > v if right else a >= v)), reached, size, load, value
        )
        place = lowering.op(where, goes, reached, place)
    return lowering.with_dims(lowering.cast(place, "int64"), value.dims)


def searchsorted(bucketize: bool) -> Rule:
    """Return the rule of searchsorted or bucketize, which have their operands the other way round."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        row, value = given(node, int(bucketize)), given(node, int(not bucketize))
        keywords = dict(node.kwargs)
        if not isinstance(row, Ref):
            raise ir.Unfusable("a sorted row that is no tensor")
        right = bool(given(node, 3, "right", False)) or keywords.get("side") == "right"
        bounds, found = lowering.value(row), lowering.value(value)
        if (sorter := keywords.get("sorter")) is not None:
            bounds = lowering.reload(gather_along(lowering, bounds, len(bounds.dims) - 1, lowering.value(sorter)))
        if bounds.dtype != found.dtype:
            raise ir.Unfusable("a place among elements of another dtype")
        if not found.dims or (len(bounds.dims) > 1 and bounds.shape[:-1] != found.shape[:-1]):
            raise ir.Unfusable("rows of another form")
        if any(len(ir.leaves(group)) > 1 for group in found.dims):
            found = lowering.reload(found)
        return lowering.cast(sorted_place(lowering, bounds, found, right=right), out_dtype(node))

    return rule
