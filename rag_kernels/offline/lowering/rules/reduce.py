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
    either,
    equal,
    exp,
    hit_place,
    is_nan,
    log,
    maximum,
    minimum,
    mul,
    power,
    sqrt,
    square,
    sub,
    where,
)
from rag_kernels.offline.ir.expressions import truth as truth_of
from rag_kernels.offline.ir.reductions import Kind
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


def product(lowering: Lowering, node: Node) -> ir.Value:
    """Return the product along a dimension, or of all elements."""
    value = lowering.cast(lowering.value(given(node, 0)), out_dtype(node))
    by_dim = node.op.endswith(".dim_int")
    keep = by_dim and bool(given(node, 2, "keepdim", False))
    return lowering.reduce("prod", value, axes(value, given(node, 1, "dim") if by_dim else None), keep=keep)


def count_nonzero(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.op(lambda x: Expr(truth_of(x)), lowering.value(given(node, 0)), dtype="int64")
    return lowering.reduce("sum", value, axes(value, given(node, 1, "dim")), keep=False)


def least_and_most(lowering: Lowering, node: Node) -> tuple[ir.Value, ...]:
    value = lowering.value(given(node, 0))
    dims, keep = axes(value, given(node, 1, "dim")), bool(given(node, 2, "keepdim", False))
    return tuple(lowering.reduce(kind, value, dims, keep=keep) for kind in ("min", "max"))


def truth(kind: str) -> Rule:
    """Return the rule of `any` or `all`."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value = lowering.op(lambda x: Expr(truth_of(x)), lowering.value(given(node, 0)))
        return lowering.reduce(
            kind, value, axes(value, given(node, 1, "dim")), keep=bool(given(node, 2, "keepdim", False))
        )

    return rule


def place_along(value: ir.Value, dim: int) -> ir.Index:
    """Return an element's index along a dimension."""
    group, behind = value.dims[dim], len(value.dims) - dim % len(value.dims) - 1
    if len(ir.leaves(group)) > 1:
        raise ir.Unfusable("an index over merged dimensions")
    return ir.Index((group, *[()] * behind), "int64", ir.Form(tuple((a, 1) for a in group)))


def extreme_index(lowering: Lowering, value: ir.Value, kind: str, dim: int, keep: bool) -> tuple[ir.Value, ir.Value]:
    """Return the extreme and the first index at which it stands (NaN wins, as in PyTorch)."""
    best = lowering.reduce(kind, value, [dim], keep=True)
    place = place_along(value, dim)
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


def moments(lowering: Lowering, node: Node) -> tuple[ir.Value, ir.Value]:
    """Return variance and mean, computed from the sum of squares about the mean."""
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
    return out, mean if keep else without(lowering, mean, dims)


def without(lowering: Lowering, value: ir.Value, dims: list[int]) -> ir.Value:
    """Return the value without these dimensions, which are of size one."""
    return lowering.with_dims(value, tuple(group for i, group in enumerate(value.dims) if i not in dims))


def variance(*, root: bool = False, mean: bool = False) -> Rule:
    """Return the rule of `var`, or of `std` with `root`, or of one of them with the mean."""

    def rule(lowering: Lowering, node: Node) -> ir.Value | tuple[ir.Value, ...]:
        var, average = moments(lowering, node)
        found = lowering.op(sqrt, var) if root else var
        return (found, average) if mean else found

    return rule


def norm_of(lowering: Lowering, value: ir.Value, dims: list[int], order: Any, keep: bool) -> ir.Value:
    """Return the vector norm of an order over these dimensions."""
    if order == 2:
        return lowering.op(sqrt, lowering.reduce("sum", lowering.op(square, value), dims, keep=keep))
    size = lowering.op(absolute, value)
    if order == 1:
        return lowering.reduce("sum", size, dims, keep=keep)
    if order in (math.inf, -math.inf):
        return lowering.reduce("max" if order > 0 else "min", size, dims, keep=keep)
    if not isinstance(order, int | float) or order == 0:
        raise ir.Unfusable(f"norm of order {order}")
    exponent = lowering.scalar(order, value.dtype)
    total = lowering.reduce("sum", lowering.op(power, size, exponent), dims, keep=keep)
    return lowering.op(lambda total, order: power(total, 1 / order), total, exponent)


def vector_norm(lowering: Lowering, node: Node) -> ir.Value:
    value = lowering.value(given(node, 0))
    order = given(node, 1, "p" if "linalg" not in node.op else "ord", 2)
    dims, keep = axes(value, given(node, 2, "dim")), bool(given(node, 3, "keepdim", False))
    return norm_of(lowering, value, dims, 2 if order is None else order, keep)


def distance(lowering: Lowering, node: Node) -> ir.Value:
    """Return the norm of the difference of two tensors."""
    gap = lowering.op(sub, lowering.value(given(node, 0)), lowering.value(given(node, 1)))
    return norm_of(lowering, gap, axes(gap, None), given(node, 2, "p", 2), False)


def pairwise_distance(lowering: Lowering, node: Node) -> ir.Value:
    a, b = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    eps = lowering.scalar(given(node, 3, "eps", 1e-6), a.dtype)
    gap = lowering.op(lambda a, b, eps: a - b + eps, a, b, eps)
    return norm_of(lowering, gap, [len(gap.dims) - 1], given(node, 2, "p", 2), bool(given(node, 4, "keepdim", False)))


def cosine_similarity(lowering: Lowering, node: Node) -> ir.Value:
    """Return the sum of the product of both, each over its norm, which is at least `eps`."""
    a, b = lowering.align([lowering.value(given(node, 0)), lowering.value(given(node, 1))])
    dim, eps = given(node, 2, "dim", 1), lowering.scalar(given(node, 3, "eps", 1e-8), a.dtype)
    rank = max(len(a.dims), len(b.dims))
    products = [lowering.op(mul, x, y) for x, y in ((a, b), (a, a), (b, b))]
    total, *squares = (lowering.reduce("sum", x, [dim % rank], keep=False) for x in products)

    def quotient(total: Expr, a: Expr, b: Expr, eps: Expr) -> Expr:
        return total / (maximum(sqrt(a), eps) * maximum(sqrt(b), eps))

    return lowering.op(quotient, total, *squares, eps)


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


def safe_softmax(lowering: Lowering, node: Node) -> ir.Value:
    """Return a softmax that is 0 where all it is of is minus infinity."""
    value, dim = lowering.value(given(node, 0)), given(node, 1, "dim")
    top, e, total = softmax_parts(lowering, value, dim)
    return lowering.op(lambda top, e, total: where(equal(top, -math.inf), 0, e / total), top, e, total)


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
    return out if keep else without(lowering, out, dims)


def scanned(lowering: Lowering, kind: str, value: ir.Value, dim: int) -> ir.Value:
    """Return the inclusive scan of a value along a dimension."""
    group = ir.leaves(value.dims[dim])
    if not group:
        return value
    if len(group) > 1:
        raise ir.Unfusable("a scan over merged dimensions")
    return lowering.tracked(ir.Scan(value.dims, value.dtype, Kind(kind), value, group[0]))


def cumulative(kind: str) -> Rule:
    """Return the rule of a running sum or product."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        value = lowering.cast(lowering.value(given(node, 0)), out_dtype(node))
        return scanned(lowering, kind, value, given(node, 1)) if value.dims else value

    return rule


def running_extreme(kind: str) -> Rule:
    """Return the rule of `cummax` or `cummin`: the extreme so far, and the last index at which it was met."""

    def rule(lowering: Lowering, node: Node) -> tuple[ir.Value, ...]:
        value, dim = lowering.value(given(node, 0)), given(node, 1, "dim")
        best = scanned(lowering, kind, value, dim)
        place = place_along(value, dim)
        met = lowering.op(lambda x, best, i: where(either(equal(x, best), is_nan(x)), i, 0), value, best, place)
        return best, scanned(lowering, "max", met, dim)

    return rule


def trace(lowering: Lowering, node: Node) -> ir.Value:
    """Return the sum of the diagonal."""
    value: ir.Value = lowering.reload(lowering.value(given(node, 0)))
    group: ir.Group = () if min(value.shape) == 1 else (ir.Atom(min(value.shape)),)
    form = ir.Form(tuple((a, 1) for a in group))
    value = lowering.reindex(value, 0, lambda: (form, ()))
    value = lowering.reindex(value, 1, lambda: (form, group))
    total = lowering.reduce(Kind.SUM, value, (1,), keep=False)
    return lowering.cast(lowering.with_dims(total, ()), out_dtype(node))
