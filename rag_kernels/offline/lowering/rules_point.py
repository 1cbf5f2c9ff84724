"""Rules for activations with parameters, casts, fills and selections.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. Knows nothing of loops' order or of C++.
"""

from __future__ import annotations

from inspect import signature

from rag_kernels.eval.aten import base_name
from rag_kernels.eval.records import Node
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import is_float
from rag_kernels.offline.ir.expressions import (
    Pointwise,
    cast,
    div,
    exp,
    floor,
    mul,
    reciprocal,
    rsqrt,
    sqrt,
    square,
    trunc,
    where,
)
from rag_kernels.offline.ir.expressions import power as powered
from rag_kernels.offline.ir.expressions import softplus as one_softplus
from rag_kernels.offline.lowering import activations
from rag_kernels.offline.lowering.arguments import operand_dtype, out_dtype
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.rules_shape import pieces

POWERS: dict[float, Pointwise] = {2: square, 3: lambda x: x * x * x, -1: reciprocal, 0.5: sqrt, -0.5: rsqrt}
"""Exponents that need no logarithm."""


def pointwise(function: Pointwise) -> Rule:
    """Return the rule of an expression over as many operands as the function takes."""
    arity = len(signature(function).parameters)

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        dtype = operand_dtype(lowering, node)
        args = [lowering.value(a, dtype) for a in node.args[:arity]]
        return lowering.op(function, *args, dtype=out_dtype(node))

    return rule


def add_or_sub(function: Pointwise) -> Rule:
    """Return the rule of a sum or difference with a factor `alpha`."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        dtype = out_dtype(node)
        a, b = (lowering.value(x, dtype) for x in node.args[:2])
        alpha = given(node, 2, "alpha", 1)
        if alpha != 1:
            b = lowering.op(mul, b, lowering.scalar(alpha, dtype), dtype=dtype)
        return lowering.op(function, *((b, a) if base_name(node.op) == "rsub" else (a, b)), dtype=dtype)

    return rule


def divide(lowering: Lowering, node: Node) -> ir.Value:
    dtype = out_dtype(node)
    a, b = (lowering.value(x, dtype) for x in node.args[:2])
    mode = given(node, 2, "rounding_mode")
    if mode is not None and not dtype.startswith("float"):
        raise ir.Unfusable("integer division")
    rounded = {None: lambda x: x, "floor": floor, "trunc": trunc}[mode]
    return lowering.op(lambda a, b: rounded(cast(a, dtype) / cast(b, dtype)), a, b, dtype=dtype)


def power(lowering: Lowering, node: Node) -> ir.Value:
    base, exponent = node.args[:2]
    dtype = out_dtype(node)
    if isinstance(exponent, int | float) and exponent in POWERS:
        return lowering.op(POWERS[exponent], lowering.value(base), dtype=dtype)
    if not is_float(dtype):
        raise ir.Unfusable("a power of integers")
    return lowering.op(powered, lowering.value(base, dtype), lowering.value(exponent, dtype), dtype=dtype)


def clamp(lowering: Lowering, node: Node) -> ir.Value:
    name = base_name(node.op)
    low = given(node, 1, "min", -1.0 if name == "hardtanh" else None)
    high = given(node, 2, "max", 1.0 if name == "hardtanh" else None)
    low = given(node, 1, "min_val", low) if name == "hardtanh" else low
    high = given(node, 2, "max_val", high) if name == "hardtanh" else high
    if name == "clamp_max":
        low, high = None, given(node, 1, "max")
    dtype = out_dtype(node)
    value = lowering.value(given(node, 0))
    if low is not None:
        value = lowering.op(lambda x, low: where(x < low, low, x), value, lowering.value(low, dtype), dtype=dtype)
    if high is not None:
        value = lowering.op(lambda x, high: where(x > high, high, x), value, lowering.value(high, dtype), dtype=dtype)
    return value


def with_numbers(function: Pointwise, *numbers: tuple[str, float]) -> Rule:
    """Return the rule of an expression over a tensor and named numbers, in this order."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        dtype = out_dtype(node)
        values = [lowering.value(given(node, 0))]
        values += [lowering.scalar(given(node, i, n, d), dtype) for i, (n, d) in enumerate(numbers, 1)]
        return lowering.op(function, *values, dtype=dtype)

    return rule


def gelu_value(lowering: Lowering, x: ir.Value, approximate: str) -> ir.Value:
    return lowering.op(activations.gelu_tanh if approximate == "tanh" else activations.gelu_erf, x)


def gelu(lowering: Lowering, node: Node) -> ir.Value:
    return gelu_value(lowering, lowering.value(given(node, 0)), given(node, 1, "approximate", "none"))


def softplus(lowering: Lowering, node: Node) -> ir.Value:
    x, dtype = lowering.value(given(node, 0)), out_dtype(node)
    beta, threshold = given(node, 1, "beta", 1), given(node, 2, "threshold", 20)
    scaled = x if beta == 1 else lowering.op(mul, x, lowering.scalar(beta, dtype))
    out = lowering.op(one_softplus, scaled)
    out = out if beta == 1 else lowering.op(div, out, lowering.scalar(beta, dtype))
    if dtype == "float32" and threshold >= 20:  # there the function rounds to x by itself
        return out
    limit = lowering.scalar(threshold, dtype)
    return lowering.op(lambda scaled, limit, x, out: where(scaled > limit, x, out), scaled, limit, x, out)


def prelu(lowering: Lowering, node: Node) -> ir.Value:
    x, weight = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    if len(weight.dims) == 1 and weight.dims[0] and len(x.dims) > 2:
        weight = lowering.with_dims(weight, (weight.dims[0], *[()] * (len(x.dims) - 2)))
    return lowering.op(lambda x, w: where(x > 0, x, w * x), x, weight)


def glu(lowering: Lowering, node: Node) -> ir.Value:
    a, b = pieces(lowering, lowering.value(given(node, 0)), 2, given(node, 1, "dim", -1))
    return lowering.op(lambda a, b: a / (1 + exp(-b)), a, b)


def lerp(lowering: Lowering, node: Node) -> ir.Value:
    a, b, w = (lowering.value(x) for x in node.args[:3])
    return lowering.op(lambda a, b, w: a + w * (b - a), a, b, w)


def fma_like(function: Pointwise) -> Rule:
    """Return the rule of an operator on three tensors and the number `value`."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        a, b, d = (lowering.value(x) for x in node.args[:3])
        return lowering.op(function, a, b, d, lowering.scalar(given(node, 3, "value", 1), out_dtype(node)))

    return rule


def same(lowering: Lowering, node: Node) -> ir.Value:
    """Return the operand itself."""
    return lowering.value(given(node, 0))


def cast_to(lowering: Lowering, node: Node) -> ir.Value:
    return lowering.cast(lowering.value(given(node, 0)), out_dtype(node))


def dropout(lowering: Lowering, node: Node) -> ir.Value:
    if given(node, 2, "train", True) and given(node, 1, "p", 0.5):
        raise ir.Unfusable("random numbers")
    return lowering.value(given(node, 0))


def filled(lowering: Lowering, node: Node) -> ir.Value:
    """Return a number on new loops: full, zeros, ones and their `_like`."""
    name = base_name(node.op)
    number = 0 if name.startswith(("zeros", "new_zeros")) else 1 if name.startswith("ones") else given(node, 1)
    constant = lowering.scalar(number, out_dtype(node))
    return lowering.with_dims(constant, ir.tensor_dims(node.outputs[0].shape))


def number(lowering: Lowering, node: Node) -> ir.Value:
    """Return the value of `torch.tensor(number)`."""
    return lowering.scalar(given(node, 0), out_dtype(node))


def arange(lowering: Lowering, node: Node) -> ir.Value:
    numbers = [a for a in node.args if isinstance(a, int)]
    if len(numbers) > 2 or len(numbers) != len(node.args) or node.outputs[0].dtype != "int64":
        raise ir.Unfusable("arange with a step")
    (group,) = ir.tensor_dims(node.outputs[0].shape)
    start = numbers[0] if len(numbers) == 2 else 0
    return lowering.tracked(ir.Index((group,), "int64", ir.Form(tuple((a, 1) for a in group), start)))


def masked_fill(lowering: Lowering, node: Node) -> ir.Value:
    x, mask, number = (
        lowering.value(given(node, 0)),
        lowering.value(given(node, 1)),
        lowering.value(given(node, 2), out_dtype(node)),
    )
    return lowering.op(lambda x, mask, number: where(mask, number, x), x, mask, number)


def where_of(lowering: Lowering, node: Node) -> ir.Value:
    dtype = out_dtype(node)
    return lowering.op(where, *(lowering.value(a, dtype) for a in node.args[:3]), dtype=dtype)
