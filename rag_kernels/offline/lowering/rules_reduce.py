"""Rules for reductions, softmax and scans.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. Knows nothing of loops' order or of C++.
"""

from __future__ import annotations

import math
from typing import Any

from rag_kernels.eval.records import Node, Ref
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import (
    Expr,
    absolute,
    div,
    equal,
    exp,
    hit_place,
    log,
    maximum,
    minimum,
    sqrt,
    square,
    where,
)
from rag_kernels.offline.ir.expressions import truth as truth_of
from rag_kernels.offline.lowering.arguments import out_dtype
from rag_kernels.offline.lowering.lower import Lowering, Rule


def axes(value: ir.Value, dim: Any) -> list[int]:
    """Return the dimensions that an argument `dim` means, counted from the front; all for None."""
    if dim is None or dim == ():
        return list(range(len(value.dims)))
    return [d % max(1, len(value.dims)) for d in (dim if isinstance(dim, tuple) else (dim,))]


def count_of(value: ir.Value, dims: list[int]) -> ir.Group:
    """Return the group of all loops of these dimensions."""
    return tuple(a for d in dims for a in (value.dims[d] if value.dims else ()))


def mean_of(lowering: Lowering, value: ir.Value, dims: list[int], keep: bool) -> ir.Value:
    """Return the mean over these dimensions."""
    total = lowering.reduce("sum", value, dims, keep=keep)
    return lowering.op(div, total, lowering.size(count_of(value, dims), value.dtype))


def centred_square(lowering: Lowering, value: ir.Value, mean: ir.Value) -> ir.Value:
    """Return (value - mean) squared."""
    return lowering.op(lambda x, mean: square(x - mean), value, mean)


def reduction(kind: str) -> Rule:
    """Return the rule of a reduction over the dimensions `dim`."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        dtype = out_dtype(node)
        value = lowering.value(given(node, 0))
        value = lowering.cast(value, dtype)
        dims = axes(value, given(node, 1, "dim"))
        keep = bool(given(node, 2, "keepdim", False))
        return mean_of(lowering, value, dims, keep) if kind == "mean" else lowering.reduce(kind, value, dims, keep=keep)

    return rule


def truth(kind: str) -> Rule:
    """Return the rule of `any` or `all`."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value = lowering.op(lambda x: Expr(truth_of(x)), lowering.value(given(node, 0)))
        return lowering.reduce(
            kind, value, axes(value, given(node, 1, "dim")), keep=bool(given(node, 2, "keepdim", False))
        )

    return rule


def extreme_index(lowering: Lowering, value: ir.Value, kind: str, dim: int, keep: bool) -> tuple[ir.Value, ir.Value]:
    """Return the extreme and the first index at which it stands (NaN wins, as in PyTorch)."""
    best = lowering.reduce(kind, value, [dim], keep=True)
    group = value.dims[dim]
    if len(ir.leaves(group)) > 1:
        raise ir.Unfusable("an index over merged dimensions")
    place = ir.Index(
        (group, *[()] * (len(value.dims) - dim % len(value.dims) - 1)), "int64", ir.Form(tuple((a, 1) for a in group))
    )
    hit = lowering.op(hit_place, value, best, place)
    where = lowering.reduce("min", hit, [dim], keep=keep, dtype="int64")
    return lowering.reduce(kind, value, [dim], keep=keep), where


def max_or_min(kind: str) -> Rule:
    """Return the rule of `max` or `min`: of two tensors, of all elements, or along a dimension with indices."""

    def rule(lowering: Lowering, node: Node) -> ir.Value | tuple[ir.Value, ...]:
        value = lowering.value(given(node, 0))
        if len(node.args) > 1 and isinstance(given(node, 1), Ref):
            other = lowering.value(given(node, 1))
            return lowering.op(maximum if kind == "max" else minimum, value, other, dtype=out_dtype(node))
        if given(node, 1, "dim") is None:
            return lowering.reduce(kind, value, axes(value, None), keep=False)
        dim = given(node, 1, "dim") % len(value.dims)
        return extreme_index(lowering, value, kind, dim, bool(given(node, 2, "keepdim", False)))

    return rule


def arg_extreme(kind: str) -> Rule:
    """Return the rule of `argmax` or `argmin`."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value, dim = lowering.value(given(node, 0)), given(node, 1, "dim")
        if dim is None:
            value, dim = lowering.view(value, (ir.size_of(a for g in value.dims for a in g),)), 0
        return extreme_index(lowering, value, kind, dim % len(value.dims), bool(given(node, 2, "keepdim", False)))[1]

    return rule


def variance(root: bool) -> Rule:
    """Return the rule of `var`, or of `std` with `root`.

    It is computed from the sum of squares about the mean.
    """

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value = lowering.value(given(node, 0))
        by_dim = node.op.endswith((".dim", ".correction"))
        dims = axes(value, given(node, 1, "dim") if by_dim else None)
        if node.op.endswith(".correction"):
            correction = given(node, 9, "correction", 1)
        else:
            correction = given(node, 2 if by_dim else 1, "unbiased", True)
        correction = 1 if correction is None else float(correction)
        mean = mean_of(lowering, value, dims, True)
        keep = bool(given(node, 3, "keepdim", False))
        total = lowering.reduce("sum", centred_square(lowering, value, mean), dims, keep=keep)
        size = lowering.size(count_of(value, dims), value.dtype)
        out = lowering.op(lambda total, size: total / (size - correction), total, size)
        return lowering.op(sqrt, out) if root else out

    return rule


def vector_norm(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.value(given(node, 0))
    ord_ = given(node, 1, "p" if "linalg" not in node.op else "ord", 2)
    dims = axes(value, given(node, 2, "dim"))
    keep = bool(given(node, 3, "keepdim", False))
    ord_ = 2 if ord_ is None else ord_
    if ord_ == 2:
        return lowering.op(sqrt, lowering.reduce("sum", lowering.op(square, value), dims, keep=keep))
    size = lowering.op(absolute, value)
    if ord_ == 1:
        return lowering.reduce("sum", size, dims, keep=keep)
    if ord_ in (math.inf, -math.inf):
        return lowering.reduce("max" if ord_ > 0 else "min", size, dims, keep=keep)
    raise ir.Unfusable(f"norm of order {ord_}")


def softmax_parts(lowering: Lowering, value: ir.Value, dim: int) -> tuple[ir.Value, ir.Value, ir.Value]:
    """Return the maximum along `dim`, exp(x - maximum), and the sum of that."""
    top = lowering.reduce("fastmax", value, [dim], keep=True)
    e = lowering.op(lambda x, top: exp(x - top), value, top)
    return top, e, lowering.reduce("sum", e, [dim], keep=True)


def softmax_value(lowering: Lowering, value: ir.Value, dim: int) -> ir.Value:
    _, e, total = softmax_parts(lowering, value, dim)
    return lowering.op(div, e, total)


def softmax(lowering: Lowering, node: Node) -> ir.Value:
    return softmax_value(lowering, lowering.value(given(node, 0)), given(node, 1, "dim"))


def log_softmax_value(lowering: Lowering, value: ir.Value, dim: int) -> ir.Value:
    top, _, total = softmax_parts(lowering, value, dim)
    return lowering.op(lambda x, top, total: x - top - log(total), value, top, total)


def log_softmax(lowering: Lowering, node: Node) -> ir.Value:
    return log_softmax_value(lowering, lowering.value(given(node, 0)), given(node, 1, "dim"))


def logsumexp(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.value(given(node, 0))
    dims = axes(value, given(node, 1, "dim"))
    keep = bool(given(node, 2, "keepdim", False))
    top = lowering.reduce("fastmax", value, dims, keep=True)
    top = lowering.op(lambda top: where(equal(absolute(top), math.inf), 0, top), top)
    total = lowering.reduce("sum", lowering.op(lambda x, top: exp(x - top), value, top), dims, keep=True)
    out = lowering.op(lambda total, top: log(total) + top, total, top)
    return out if keep else lowering.with_dims(out, tuple(g for i, g in enumerate(out.dims) if i not in dims))


def cumulative(kind: str) -> Rule:
    """Return the rule of a running sum or product."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value = lowering.value(given(node, 0))
        dtype = out_dtype(node)
        value = lowering.cast(value, dtype)
        group = ir.leaves(value.dims[given(node, 1)])
        if not group:
            return value
        if len(group) > 1:
            raise ir.Unfusable("a scan over merged dimensions")
        return lowering.tracked(ir.Scan(value.dims, dtype, kind, value, group[0]))

    return rule
