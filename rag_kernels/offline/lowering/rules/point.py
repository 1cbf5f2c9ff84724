"""Rules for activations with parameters, casts, fills and selections.

Comes in: a graph node and the `Lowering` that builds values. Goes out: the node's value, or `ir.Unfusable` with the
reason. Knows nothing of loops' order or of C++.
"""

from __future__ import annotations

import math
from inspect import signature

from rag_kernels.eval.records import Node, Ref
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.graph.nodes import given
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import FLOAT8, HALF, LARGEST, STORED_ONLY, is_float
from rag_kernels.offline.ir.expressions import (
    Expr,
    Pointwise,
    absolute,
    both,
    cast,
    differ,
    div,
    either,
    equal,
    exp,
    floor,
    is_nan,
    less,
    log,
    mul,
    no_less,
    no_more,
    quotient,
    reciprocal,
    rest,
    rsqrt,
    sqrt,
    square,
    trunc,
    where,
)
from rag_kernels.offline.ir.expressions import power as powered
from rag_kernels.offline.ir.expressions import softplus as one_softplus
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.lowering import activations
from rag_kernels.offline.lowering.arguments import graph_dtype, operand_dtype, out_dtype
from rag_kernels.offline.lowering.lower import Lowering, Rule
from rag_kernels.offline.lowering.rounded_products import as_rounded
from rag_kernels.offline.lowering.rules.shape import pieces

POWERS: dict[float, Pointwise] = {
    1: lambda x: x,
    2: square,
    3: lambda x: x * x * x,
    -1: reciprocal,
    -2: lambda x: 1 / square(x),
    0.5: sqrt,
    -0.5: rsqrt,
}
"""Exponents that need no logarithm."""


def pointwise(function: Pointwise) -> Rule:
    """Return the rule of an expression over as many operands as the function takes."""
    arity = len(signature(function).parameters)

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        if node.kwargs or len(node.args) > arity:  # as decimals of a rounding
            raise ir.Unfusable("another form")
        dtype = operand_dtype(lowering, node)
        args = [lowering.value(a, dtype) for a in node.args]
        return lowering.op(function, *args, dtype=out_dtype(node))

    return rule


def add_or_sub(function: Pointwise) -> Rule:
    """Return the rule of a sum or difference with a factor `alpha`."""

    def rule(lowering: Lowering, node: Node) -> ir.Value:
        dtype, stored = out_dtype(node), node.outputs[0].dtype
        a, b = (lowering.value(x, dtype) for x in node.args[:2])
        products = as_rounded(lowering, (a, b), stored)
        a, b = products or (a, b)
        alpha = given(node, 2, "alpha", 1)
        if alpha != 1:
            b = lowering.op(mul, b, lowering.scalar(alpha, dtype), dtype=dtype)
        total = lowering.op(function, *((b, a) if base_name(node.op) == "rsub" else (a, b)), dtype=dtype)
        return lowering.rounded(total, stored) if products else total

    return rule


def divide(lowering: Lowering, node: Node) -> ir.Value:
    dtype = out_dtype(node)
    mode = given(node, 2, "rounding_mode")
    if mode == "floor":
        return floor_divide(lowering, node)
    a, b = (lowering.value(x, dtype) for x in node.args[:2])
    if mode == "trunc" and not is_float(dtype):
        return lowering.op(quotient, lowering.cast(a, dtype), lowering.cast(b, dtype))
    rounded: Pointwise = trunc if mode == "trunc" else lambda x: x
    return lowering.op(lambda a, b: rounded(cast(a, dtype) / cast(b, dtype)), a, b, dtype=dtype)


def power(lowering: Lowering, node: Node) -> ir.Value:
    base, exponent = node.args[:2]
    dtype = out_dtype(node)
    if isinstance(exponent, int | float) and exponent in POWERS:
        return lowering.op(POWERS[exponent], lowering.value(base), dtype=dtype)
    if not is_float(dtype):
        raise ir.Unfusable("a power of integers")
    return lowering.op(powered, lowering.value(base, dtype), lowering.value(exponent, dtype), dtype=dtype)


def float_power(lowering: Lowering, node: Node) -> ir.Value:
    base, exponent = (lowering.cast(lowering.value(x, "float64"), "float64") for x in node.args[:2])
    return lowering.op(powered, base, exponent)


def fmod(lowering: Lowering, node: Node) -> ir.Value:
    """Return what a division towards zero leaves."""
    dtype = out_dtype(node)
    return lowering.op(rest, *(lowering.cast(lowering.value(x, dtype), dtype) for x in node.args[:2]))


def nan_to_num(lowering: Lowering, node: Node) -> ir.Value:
    """Return the value with other numbers for NaN and infinities: by default the greatest that the dtype has."""
    value, dtype = lowering.value(given(node, 0)), out_dtype(node)
    if not is_float(dtype):
        return value
    most = LARGEST[node.outputs[0].dtype]
    found = (given(node, i, name) for i, name in enumerate(("nan", "posinf", "neginf"), 1))
    numbers = [default if x is None else x for x, default in zip(found, (0.0, most, -most), strict=True)]

    def finite(x: Expr, nan: Expr, above: Expr, below: Expr) -> Expr:
        return where(is_nan(x), nan, where(equal(x, math.inf), above, where(equal(x, -math.inf), below, x)))

    return lowering.op(finite, value, *(lowering.scalar(x, dtype) for x in numbers))


def logit(lowering: Lowering, node: Node) -> ir.Value:
    value, eps = lowering.value(given(node, 0)), given(node, 1, "eps")
    if eps is not None:
        low = lowering.scalar(eps, value.dtype)
        value = lowering.op(lambda x, low: no_less(no_more(x, 1 - low), low), value, low)
    return lowering.op(lambda x: log(x / (1 - x)), value)


def is_close(lowering: Lowering, node: Node) -> ir.Value:
    a, b = (lowering.value(x) for x in node.args[:2])
    relative, total = (
        lowering.scalar(given(node, i, n, d), "float32") for i, n, d in ((2, "rtol", 1e-5), (3, "atol", 1e-8))
    )
    nan_too = bool(given(node, 4, "equal_nan", False))

    def near(a: Expr, b: Expr, relative: Expr, total: Expr) -> Expr:
        gap = absolute(a - b)
        found = either(equal(a, b), both(gap <= total + absolute(relative * b), less(gap, math.inf)))
        return either(found, both(is_nan(a), is_nan(b))) if nan_too else found

    return lowering.op(near, a, b, relative, total)


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
        value = lowering.op(no_less, value, lowering.value(low, dtype), dtype=dtype)
    if high is not None:
        value = lowering.op(no_more, value, lowering.value(high, dtype), dtype=dtype)
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


WITHIN = dict.fromkeys(HALF, frozenset({"bool", "int8", "uint8", *FLOAT8})) | dict.fromkeys(FLOAT8, frozenset({"bool"}))
"""By narrow dtype: those whose numbers it holds exactly."""
WHOLE = dict.fromkeys(HALF, 256) | dict.fromkeys(FLOAT8, 8)
"""By narrow dtype: up to which whole number it has all."""


def cast_to(lowering: Lowering, node: Node) -> ir.Value:
    """Return the operand in another dtype. To sixteen or eight bits it rounds, as the module's author said.

    Operators on sixteen bits round in PyTorch alone: here only what is stored does.
    """
    source, dtype = given(node, 0), node.outputs[0].dtype
    value = lowering.cast(lowering.value(source), out_dtype(node))
    if dtype not in STORED_ONLY or graph_dtype(lowering, source) in {dtype, *WITHIN[dtype]} or is_small(value, dtype):
        return value
    return lowering.rounded(value, dtype)


def is_small(value: ir.Value, dtype: str) -> bool:
    """Return whether a value is a number of which a narrow dtype holds all digits."""
    value = strip(value)
    if not isinstance(value, ir.Const) or value.name:
        return False
    if not math.isfinite(value.number):
        return dtype in HALF
    return float(value.number).is_integer() and abs(value.number) <= WHOLE[dtype]


def dropout(lowering: Lowering, node: Node) -> ir.Value:
    if given(node, 2, "train", True) and given(node, 1, "p", 0.5):
        raise ir.Unfusable("random numbers")
    return lowering.value(given(node, 0))


def filled(lowering: Lowering, node: Node) -> ir.Value:
    """Return a number on new loops: full, zeros, ones, their `_like` and the methods `new_`, and scalar_tensor.

    What PyTorch leaves as it finds it (`empty_like`) is zero.
    """
    name = base_name(node.op).removeprefix("new_")
    where = {"new_full": 2, "scalar_tensor": 0}.get(base_name(node.op), 1)
    dtype, implied = out_dtype(node), name.startswith(("empty", "zeros", "ones"))
    number = int(name.startswith("ones")) if implied else given(node, where, "fill_value")
    constant = ir.Const((), dtype, number) if implied else lowering.scalar(number, dtype)
    return lowering.with_dims(constant, made_dims(lowering, node))


def made_dims(lowering: Lowering, node: Node) -> tuple[ir.Group, ...]:
    """Return new loops for a tensor made of nothing, as many as an argument has where one is known to tell."""
    dims = ir.tensor_dims(node.outputs[0].shape)
    for size in lowering.fp.made:
        if size.node == node.name:
            along = ir.Along((lowering.value(Ref(size.argument)).dims[size.of],))
            for atom in dims[size.dim]:
                atom.along = along
    return dims


MOST_LISTED = 16  # numbers of a list that are written out


def number(lowering: Lowering, node: Node) -> ir.Value:
    """Return the value of `torch.tensor(number)`, or of a short list of numbers as a choice by place."""
    listed, dtype = given(node, 0), out_dtype(node)
    if not isinstance(listed, tuple):
        return lowering.scalar(listed, dtype)
    if not 0 < len(listed) <= MOST_LISTED or not all(isinstance(n, bool | int | float) for n in listed):
        raise ir.Unfusable("a list of many numbers")
    group: ir.Group = () if len(listed) == 1 else (ir.Atom(len(listed), fixed=True),)
    place = lowering.tracked(ir.Index((group,), "int64", ir.Form(tuple((a, 1) for a in group))))
    out: ir.Value = lowering.with_dims(ir.Const((), dtype, listed[-1]), (group,))
    for i, n in reversed(list(enumerate(listed[:-1]))):
        here = lowering.op(lambda place, i=i: equal(place, i), place)
        out = lowering.op(where, here, ir.Const((), dtype, n), out)
    return out


def arange(lowering: Lowering, node: Node) -> ir.Value:
    """Return start, start + step... as PyTorch counts: in float64 where a number is no integer."""
    numbers = [given(node, i, name) for i, name in enumerate(("start", "end", "step"))]
    if node.op == "aten.arange.default":
        numbers = [0, given(node, 0, "end"), 1]
    if any(not isinstance(n, int | float) for n in numbers if n is not None):
        raise ir.Unfusable("numbers that are arguments")
    start, step, dtype = numbers[0] or 0, 1 if numbers[2] is None else numbers[2], out_dtype(node)
    (group,) = made_dims(lowering, node)
    terms = tuple((a, 1) for a in group)
    if isinstance(start, int) and isinstance(step, int):
        counted = ir.Form(tuple((a, step) for a in group), start)
        place: ir.Value = lowering.tracked(ir.Index((group,), "int64", counted))
    else:
        place = lowering.tracked(ir.Index((group,), "int64", ir.Form(terms)))
        ends = (ir.Const((), "float64", float(start)), ir.Const((), "float64", float(step)))
        place = lowering.op(lambda n, start, step: start + n * step, lowering.cast(place, "float64"), *ends)
    return lowering.cast(place, dtype)


def eye(lowering: Lowering, node: Node) -> ir.Value:
    """Return ones where row and column are the same, zeros elsewhere."""
    rows, columns = ir.tensor_dims(node.outputs[0].shape)
    terms = (*((a, 1) for a in columns), *((a, -1) for a in rows))
    place = lowering.tracked(ir.Index((rows, columns), "int64", ir.Form(terms)))
    return lowering.cast(lowering.op(lambda place: equal(place, 0), place), out_dtype(node))


def linspace(lowering: Lowering, node: Node) -> ir.Value:
    """Return numbers at equal distances, from both ends as PyTorch counts."""
    start, end, dtype = given(node, 0), given(node, 1), out_dtype(node)
    if not isinstance(start, int | float) or not isinstance(end, int | float) or not dtype.startswith("float"):
        raise ir.Unfusable("ends that are arguments, or integers")
    (group,) = ir.tensor_dims(node.outputs[0].shape)
    place = lowering.tracked(ir.Index((group,), "int64", ir.Form(tuple((a, 1) for a in group))))
    count = lowering.size(group, dtype)
    first, last = ir.Const((), dtype, start), ir.Const((), dtype, end)
    if not group:
        return lowering.with_dims(first, ((),))
    step = lowering.op(lambda first, last, count: (last - first) / (count - 1), first, last, count)

    def number(n: Expr, step: Expr, count: Expr, first: Expr, last: Expr) -> Expr:
        return where(n < count / 2, first + step * n, last - step * (count - n - 1))

    return lowering.op(number, lowering.cast(place, dtype), step, count, first, last)


def floor_divide(lowering: Lowering, node: Node) -> ir.Value:
    """Return the quotient rounded down."""
    dtype = out_dtype(node)
    a, b = (lowering.cast(lowering.value(x, dtype), dtype) for x in node.args[:2])
    if is_float(dtype):
        return lowering.op(lambda a, b: floor(a / b), a, b)
    return lowering.op(lambda a, b: quotient(a, b) - cast(is_below(rest(a, b), b), dtype), a, b)


def log_sigmoid_kept(lowering: Lowering, node: Node) -> tuple[ir.Value, ir.Value]:
    """Return a logarithm of a sigmoid and what its gradient is computed from, exp(-|x|).

    PyTorch's own keeps that on a CPU alone, where graphs are recorded.
    """
    value = lowering.value(given(node, 0))
    return lowering.op(activations.log_sigmoid, value), lowering.op(lambda x: exp(-absolute(x)), value)


def remainder(lowering: Lowering, node: Node) -> ir.Value:
    """Return what a division rounded down leaves: it has the divisor's sign."""
    dtype = out_dtype(node)
    a, b = (lowering.cast(lowering.value(x, dtype), dtype) for x in node.args[:2])
    left = lowering.op(rest, a, b)
    return lowering.op(lambda left, b: where(is_below(left, b), left + b, left), left, b)


def is_below(left: Expr, divisor: Expr) -> Expr:
    """Return whether a division towards zero left something of the other sign than the divisor's."""
    return both(differ(left, 0), differ(left < 0, divisor < 0))


def outer(lowering: Lowering, node: Node) -> ir.Value:
    a, b = lowering.value(given(node, 0)), lowering.value(given(node, 1))
    return lowering.op(mul, lowering.with_dims(a, (*a.dims, ())), b, dtype=out_dtype(node))


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
