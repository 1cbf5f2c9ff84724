"""Rules for activations with parameters, casts, fills and selections.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. Knows nothing of loops' order or of C++.
"""

from __future__ import annotations

from rag_kernels.eval.aten import base_name
from rag_kernels.eval.records import Node
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.lowering.arguments import operand_dtype, out_dtype
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.pointwise import POINTWISE
from rag_kernels.offline.lowering.rules_shape import pieces


def pointwise(template: str) -> Rule:
    """Return the rule of an expression; the highest `{n}` in it says how many operands it has."""
    arity = 1 + max(int(n) for n in "012" if f"{{{n}}}" in template)

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        dtype = operand_dtype(lowering, node)
        args = [lowering.value(a, dtype) for a in node.args[:arity]]
        return lowering.op(template, *args, dtype=out_dtype(node))

    return rule


def add_or_sub(sign: str) -> Rule:
    """Return the rule of a sum or difference with a factor `alpha`."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        dtype = out_dtype(node)
        a, b = (lowering.value(x, dtype) for x in node.args[:2])
        alpha = given(node, 2, "alpha", 1)
        if alpha != 1:
            b = lowering.op("{0} * {1}", b, lowering.scalar(alpha, dtype), dtype=dtype)
        return lowering.op(f"{{0}} {sign} {{1}}", *((b, a) if base_name(node.op) == "rsub" else (a, b)), dtype=dtype)

    return rule


def divide(lowering: Lowering, node: Node) -> ir.Value:
    dtype = out_dtype(node)
    a, b = (lowering.value(x, dtype) for x in node.args[:2])
    mode = given(node, 2, "rounding_mode")
    if mode is not None and not dtype.startswith("float"):
        raise ir.Unfusable("integer division")
    wrap = {None: "{}", "floor": "rk_floor({})", "trunc": "rk_trunc({})"}[mode]
    return lowering.op(wrap.format(POINTWISE["div"]), a, b, dtype=dtype)


def power(lowering: Lowering, node: Node) -> ir.Value:
    base, exponent = node.args[:2]
    dtype = out_dtype(node)
    known = {2: "{0} * {0}", 3: "{0} * {0} * {0}", -1: "{T}(1) / {0}", 0.5: "rk_sqrt({0})"}
    known[-0.5] = "{T}(1) / rk_sqrt({0})"
    if isinstance(exponent, int | float) and exponent in known:
        return lowering.op(known[exponent], lowering.value(base), dtype=dtype)
    return lowering.op("rk_pow({0}, {1})", lowering.value(base, dtype), lowering.value(exponent, dtype), dtype=dtype)


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
        value = lowering.op("{0} < {1} ? {1} : {0}", value, lowering.value(low, dtype), dtype=dtype)
    return (
        value if high is None else lowering.op("{0} > {1} ? {1} : {0}", value, lowering.value(high, dtype), dtype=dtype)
    )


def with_numbers(template: str, *numbers: tuple[str, float], first: str = "") -> Rule:
    """Return the rule of a unary operator with named numbers.

    `{0}` is the tensor, `{1}`... are the numbers in order. `first` is computed before and takes part as the last
    operand: a costly function inside a choice would keep the loop from vectorising.
    """

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        dtype = out_dtype(node)
        values = [lowering.value(given(node, 0))]
        values += [lowering.scalar(given(node, i, n, d), dtype) for i, (n, d) in enumerate(numbers, 1)]
        if first:
            values.append(lowering.op(first, *values, dtype=dtype))
        return lowering.op(template, *values, dtype=dtype)

    return rule


def gelu_value(lowering: Lowering, x: ir.Value, approximate: str) -> ir.Value:
    if approximate == "tanh":
        inner = lowering.op("{T}(0.7978845608028654) * ({0} + {T}(0.044715) * {0} * {0} * {0})", x)
        return lowering.op("{T}(0.5) * {0} * ({T}(1) + rk_tanh({1}))", x, inner)
    return lowering.op("{0} * {T}(0.5) * ({T}(1) + rk_erf({0} * {T}(0.7071067811865476)))", x)


def gelu(lowering: Lowering, node: Node) -> ir.Value:
    return gelu_value(lowering, lowering.value(given(node, 0)), given(node, 1, "approximate", "none"))


def softplus(lowering: Lowering, node: Node) -> ir.Value:
    x, dtype = lowering.value(given(node, 0)), out_dtype(node)
    beta, threshold = given(node, 1, "beta", 1), given(node, 2, "threshold", 20)
    scaled = x if beta == 1 else lowering.op("{0} * {1}", x, lowering.scalar(beta, dtype))
    out = lowering.op("rk_softplus({0})", scaled)
    out = out if beta == 1 else lowering.op("{0} / {1}", out, lowering.scalar(beta, dtype))
    if dtype == "float32" and threshold >= 20:  # there the function rounds to x by itself
        return out
    return lowering.op("{0} > {1} ? {2} : {3}", scaled, lowering.scalar(threshold, dtype), x, out)


def mish(lowering: Lowering, node: Node) -> ir.Value:
    """Return x * tanh(log(1 + e)) with e = exp(x), computed as x * (e^2 + 2e) / (e^2 + 2e + 2).

    Beyond 20, e is cut off and the result is x.
    """
    x = lowering.value(given(node, 0))
    e = lowering.op("rk_exp({0} > 20 ? {T}(20) : {0})", x)
    return lowering.op("{0} * ({1} * ({1} + {T}(2)) / ({1} * ({1} + {T}(2)) + {T}(2)))", x, e)


def prelu(lowering: Lowering, node: Node) -> ir.Value:
    x, weight = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    if len(weight.dims) == 1 and weight.dims[0] and len(x.dims) > 2:
        weight = lowering.with_dims(weight, (weight.dims[0], *[()] * (len(x.dims) - 2)))
    return lowering.op("{0} > 0 ? {0} : {1} * {0}", x, weight)


def glu(lowering: Lowering, node: Node) -> ir.Value:
    a, b = pieces(lowering, lowering.value(given(node, 0)), 2, given(node, 1, "dim", -1))
    return lowering.op("{0} / ({T}(1) + rk_exp(-{1}))", a, b)


def lerp(lowering: Lowering, node: Node) -> ir.Value:
    a, b, w = (lowering.value(x) for x in node.args[:3])
    return lowering.op("{0} + {2} * ({1} - {0})", a, b, w)


def fma_like(template: str) -> Rule:
    """Return the rule of an operator on three tensors and the number `value`."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        a, b, d = (lowering.value(x) for x in node.args[:3])
        return lowering.op(template, a, b, d, lowering.scalar(given(node, 3, "value", 1), out_dtype(node)))

    return rule


def same(lowering: Lowering, node: Node) -> ir.Value:
    """Return the operand itself."""
    return lowering.value(given(node, 0))


def cast(lowering: Lowering, node: Node) -> ir.Value:
    return lowering.op("{T}({0})", lowering.value(given(node, 0)), dtype=out_dtype(node))


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
    return lowering.op("{1} ? {T}({2}) : {0}", x, mask, number)


def where(lowering: Lowering, node: Node) -> ir.Value:
    dtype = out_dtype(node)
    return lowering.op(POINTWISE["where"], *(lowering.value(a, dtype) for a in node.args[:3]), dtype=dtype)
