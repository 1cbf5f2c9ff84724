"""Rules for losses.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. Knows nothing of loops' order or of C++.
"""

from __future__ import annotations

from typing import Any

from rag_kernels.eval.records import Node
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import (
    Expr,
    Pointwise,
    absolute,
    differ,
    div,
    equal,
    exp,
    log,
    log1p,
    maximum,
    mul,
    softplus,
    sqrt,
    square,
    where,
)
from rag_kernels.offline.lowering.arguments import out_dtype
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.pointwise import relu
from rag_kernels.offline.lowering.rules.norm import gather_along
from rag_kernels.offline.lowering.rules.reduce import mean_of, softmax_parts


def reduced(lowering: Lowering, value: ir.Value, how: Any) -> ir.Value:
    """Return a loss as it is (`how` 0), its mean (1) or its sum (2)."""
    dims = list(range(len(value.dims)))
    if how == 0:
        return value
    return mean_of(lowering, value, dims, False) if how == 1 else lowering.reduce("sum", value, dims, keep=False)


def pair_loss(function: Pointwise, *numbers: tuple[str, float]) -> Rule:
    """Return the rule of a loss of input and target, and of its numbers."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        a, b = lowering.value(given(node, 0)), lowering.value(given(node, 1))
        values = [lowering.scalar(given(node, i, n, d), a.dtype) for i, (n, d) in enumerate(numbers, 3)]
        return reduced(
            lowering, lowering.op(function, a, b, *values, dtype=out_dtype(node)), given(node, 2, "reduction", 1)
        )

    return rule


def smooth_l1(x: Expr, target: Expr, beta: Expr) -> Expr:
    gap = absolute(x - target)
    return where(gap < beta, 0.5 * square(x - target) / beta, gap - 0.5 * beta)


def huber(x: Expr, target: Expr, delta: Expr) -> Expr:
    gap = absolute(x - target)
    return where(gap <= delta, 0.5 * square(x - target), delta * (gap - 0.5 * delta))


def triplet_margin(lowering: Lowering, node: Node) -> ir.Value:
    anchor, near, far = (lowering.value(given(node, i)) for i in range(3))
    power, swap = given(node, 4, "p", 2.0), given(node, 6, "swap", False)
    if power != 2 or swap:
        raise ir.Unfusable("another norm than 2, or swap")
    eps = lowering.scalar(given(node, 5, "eps", 1e-6), anchor.dtype)

    def distance(other: ir.Value) -> ir.Value:
        gap = lowering.op(lambda a, b, eps: square(a - b + eps), anchor, other, eps)
        return lowering.op(sqrt, lowering.reduce("sum", gap, [-1], keep=False))

    margin = lowering.scalar(given(node, 3, "margin", 1.0), anchor.dtype)
    loss = lowering.op(lambda margin, near, far: relu(margin + near - far), margin, distance(near), distance(far))
    return reduced(lowering, loss, given(node, 7, "reduction", 1))


def kl_div(lowering: Lowering, node: Node) -> ir.Value:
    a, b = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    if given(node, 3, "log_target", False):
        value = lowering.op(lambda a, b: exp(b) * (b - a), a, b)
    else:
        value = lowering.op(lambda a, b: where(equal(b, 0), 0, b * (log(b) - a)), a, b)
    return reduced(lowering, value, given(node, 2, "reduction", 1))


def cross_entropy_term(p: Expr, target: Expr) -> Expr:
    """Return the binary cross entropy of a probability; logarithms are at least -100, as PyTorch's are."""
    yes, no = maximum(log(p), -100.0), maximum(log1p(-p), -100.0)
    return (target - 1) * no - target * yes


def binary_cross_entropy(lowering: Lowering, node: Node) -> ir.Value:
    p, target = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    loss = lowering.op(cross_entropy_term, p, target)
    return reduced(lowering, weighted(lowering, loss, given(node, 2, "weight")), given(node, 3, "reduction", 1))


def binary_cross_entropy_with_logits(lowering: Lowering, node: Node) -> ir.Value:
    """Return (1 - target) x + (1 + (pos_weight - 1) target) log(1 + exp(-x))."""
    x, target = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    if (positive := given(node, 3, "pos_weight")) is None:
        loss = lowering.op(lambda x, t: softplus(-x) + (1 - t) * x, x, target)
    else:

        def loss_of(x: Expr, t: Expr, w: Expr) -> Expr:
            return (1 - t) * x + (1 + (w - 1) * t) * softplus(-x)

        loss = lowering.op(loss_of, x, target, lowering.value(positive))
    return reduced(lowering, weighted(lowering, loss, given(node, 2, "weight")), given(node, 4, "reduction", 1))


def weighted(lowering: Lowering, loss: ir.Value, weight: Any) -> ir.Value:
    return loss if weight is None else lowering.op(mul, loss, lowering.value(weight))


def poisson_nll(lowering: Lowering, node: Node) -> ir.Value:
    x, target = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    logs, full, eps, how = node.args[2:6]
    if logs:
        loss = lowering.op(lambda x, t: exp(x) - t * x, x, target)
    else:
        loss = lowering.op(lambda x, t, eps: x - t * log(x + eps), x, target, lowering.scalar(eps, x.dtype))
    if full:

        def stirling(loss: Expr, t: Expr) -> Expr:
            return loss + where(t > 1, t * log(t) - t + 0.5 * log(t * 6.283185307179586), 0)

        loss = lowering.op(stirling, loss, target)
    return reduced(lowering, loss, how)


def hinge_embedding(lowering: Lowering, node: Node) -> ir.Value:
    x, target = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    margin = lowering.scalar(given(node, 2, "margin", 1.0), x.dtype)

    def term(x: Expr, t: Expr, margin: Expr) -> Expr:
        return where(equal(t, 1), 0, relu(margin - x)) + where(equal(t, -1), 0, x)

    return reduced(lowering, lowering.op(term, x, target, margin), given(node, 3, "reduction", 1))


def margin_ranking(lowering: Lowering, node: Node) -> ir.Value:
    a, b, target = (lowering.value(given(node, i)) for i in range(3))
    margin = lowering.scalar(given(node, 3, "margin", 0.0), a.dtype)
    loss = lowering.op(lambda a, b, t, margin: relu(margin - t * (a - b)), a, b, target, margin)
    return reduced(lowering, loss, given(node, 4, "reduction", 1))


COSINE_EPS = 1e-12
"""Added to squared norms by PyTorch's cosine embedding loss."""


def cosine_embedding(lowering: Lowering, node: Node) -> ir.Value:
    """Return 1 - cos for a target of 1, relu(cos - margin) for one of -1."""
    a, b, target = (lowering.value(given(node, i)) for i in range(3))
    margin = lowering.scalar(given(node, 3, "margin", 0.0), a.dtype)
    ab, aa, bb = (lowering.reduce("sum", lowering.op(mul, x, y), [-1], keep=False) for x, y in ((a, b), (a, a), (b, b)))

    def term(ab: Expr, aa: Expr, bb: Expr, t: Expr, margin: Expr) -> Expr:
        cosine = ab / sqrt((aa + COSINE_EPS) * (bb + COSINE_EPS))
        return where(equal(t, 1), 1 - cosine, where(equal(t, -1), relu(cosine - margin), 0))

    return reduced(lowering, lowering.op(term, ab, aa, bb, target, margin), given(node, 4, "reduction", 1))


def nll(lowering: Lowering, node: Node) -> ir.Value:
    """Return minus the target's log-probability."""
    logs, target = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    dim = 1 if len(logs.dims) > 1 else 0
    index = lowering.view(target, (*target.shape[:dim], 1, *target.shape[dim:]))
    loss = lowering.op(lambda x: -x, gather_along(lowering, logs, dim, index))
    weight = class_weight(lowering, given(node, 2, "weight"), logs, dim, index)
    return class_loss(
        lowering, loss, weight, index, dim, given(node, 4, "ignore_index", -100), given(node, 3, "reduction", 1)
    )


def class_weight(lowering: Lowering, weight: Any, x: ir.Value, dim: int, index: ir.Value) -> ir.Value | None:
    """Return the weight of each target's class, or None where classes have none."""
    if weight is None:
        return None
    classes = lowering.value(weight)
    flat = gather_along(lowering, classes, 0, lowering.view(index, (ir.size_of(a for g in index.dims for a in g),)))
    return lowering.view(flat, index.shape)


def class_loss(
    lowering: Lowering, loss: ir.Value, weight: ir.Value | None, index: ir.Value, dim: int, ignored: Any, how: Any
) -> ir.Value:
    """Return losses of targets (a dimension of one at `dim`) reduced: those of the ignored class do not count.

    A mean is over the weights of the classes.
    """
    number = lowering.scalar(ignored, index.dtype)
    if weight is not None:
        loss = lowering.op(mul, loss, weight)
    loss = lowering.op(lambda target, number, loss: where(equal(target, number), 0, loss), index, number, loss)
    if how == 1:
        every = list(range(len(loss.dims)))
        if weight is None:
            kept = lowering.op(lambda target, number: differ(target, number), index, number, dtype=loss.dtype)
        else:
            kept = lowering.op(lambda target, n, w: where(equal(target, n), 0, w), index, number, weight)
        return lowering.op(
            div,
            lowering.reduce("sum", loss, every, keep=False),
            lowering.reduce("sum", kept, every, keep=False),
        )
    loss = lowering.with_dims(loss, (*loss.dims[:dim], *loss.dims[dim + 1 :]))
    return reduced(lowering, loss, how)


def cross_entropy(lowering: Lowering, node: Node) -> ir.Value:
    """Return cross entropy for class indices or class probabilities.

    It reads the target's logit where it stands, and never writes the log-probabilities.
    """
    x, target = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    dim, smoothing, how = (
        1 if len(x.dims) > 1 else 0,
        given(node, 5, "label_smoothing", 0.0),
        given(node, 3, "reduction", 1),
    )
    weight = given(node, 2, "weight")
    top, _, total = softmax_parts(lowering, x, dim)
    if target.dtype != "int64":
        return of_probabilities(lowering, node, x, target, top, total, dim)
    index = lowering.view(target, (*target.shape[:dim], 1, *target.shape[dim:]))
    picked = gather_along(lowering, x, dim, index)
    loss = lowering.op(lambda total, picked, top: log(total) - (picked - top), total, picked, top)
    if smoothing and weight is not None:
        raise ir.Unfusable("smoothing with weights")
    if smoothing:
        gaps = lowering.op(lambda x, top: x - top, x, top)
        mean = mean_of(lowering, gaps, [dim], True)

        def smoothed(loss: Expr, total: Expr, mean: Expr, s: Expr) -> Expr:
            return (1 - s) * loss + s * (log(total) - mean)

        loss = lowering.op(smoothed, loss, total, mean, lowering.scalar(smoothing, x.dtype))
    of_class = class_weight(lowering, weight, x, dim, index)
    return class_loss(lowering, loss, of_class, index, dim, given(node, 4, "ignore_index", -100), how)


def of_probabilities(
    lowering: Lowering, node: Node, x: ir.Value, target: ir.Value, top: ir.Value, total: ir.Value, dim: int
) -> ir.Value:
    """Return cross entropy for class probabilities, of which smoothing keeps a part; a mean is over the samples."""
    smoothing, how = given(node, 5, "label_smoothing", 0.0), given(node, 3, "reduction", 1)
    if smoothing:
        classes = lowering.size(x.dims[dim], x.dtype)
        share = lowering.scalar(smoothing, x.dtype)
        target = lowering.op(lambda t, s, n: t * (1 - s) + s / n, target, share, classes)
    if (weight := given(node, 2, "weight")) is not None:
        classes = lowering.value(weight)
        laid = lowering.with_dims(classes, (*classes.dims, *[()] * (len(x.dims) - dim - 1)))
        target = lowering.op(mul, target, laid)
    terms = lowering.op(lambda x, top, total, t: (log(total) - (x - top)) * t, x, top, total, target)
    loss = lowering.reduce("sum", terms, [dim], keep=False)
    if how == 1:
        every = list(range(len(loss.dims)))
        return (
            lowering.op(
                div,
                lowering.reduce("sum", loss, every, keep=False),
                lowering.size(tuple(a for g in loss.dims for a in g), x.dtype),
            )
            if every
            else loss
        )
    return reduced(lowering, loss, how)
