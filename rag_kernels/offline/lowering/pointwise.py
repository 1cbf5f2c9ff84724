"""Pointwise coverage: ATen name -> the expression over its operands.

Comes in: the base name of an ATen operator. Goes out: a function of expressions (`ir/expressions.py`), one parameter an
operand. Knows nothing of shapes: the files `rules_*.py` have the operators that need more than one expression.
"""

from __future__ import annotations

import math

from rag_kernels.offline.ir.expressions import (
    Expr,
    Pointwise,
    absolute,
    at_least,
    at_most,
    both,
    cast,
    ceil,
    differ,
    div,
    either,
    equal,
    erf,
    exp,
    expm1,
    floor,
    greater,
    inverse,
    is_nan,
    less,
    log,
    log1p,
    maximum,
    minimum,
    mul,
    nearest,
    negative,
    reciprocal,
    rsqrt,
    sigmoid,
    silu,
    sqrt,
    square,
    tanh,
    trunc,
    truth,
    unary,
    where,
)
from rag_kernels.offline.ir.expressions import binary as two
from rag_kernels.offline.ir.operators import Operator


def bitwise_not(x: Expr) -> Expr:
    return inverse(x) if x.dtype == "bool" else unary(Operator.BIT_NOT)(x)


def relu(x: Expr) -> Expr:
    return where(x < 0, 0, x)


def relu6(x: Expr) -> Expr:
    return where(x < 0, 0, where(x > 6, 6, x))


def sign(x: Expr) -> Expr:
    return cast(x > 0, x.dtype) - cast(x < 0, x.dtype)


POINTWISE: dict[str, Pointwise] = {
    "abs": absolute,
    "acos": unary(Operator.ACOS),
    "asin": unary(Operator.ASIN),
    "atan": unary(Operator.ATAN),
    "atan2": two(Operator.ATAN2),
    "bitwise_and": two(Operator.BIT_AND),
    "bitwise_left_shift": two(Operator.SHIFT_LEFT),
    "bitwise_not": bitwise_not,
    "bitwise_or": two(Operator.BIT_OR),
    "bitwise_right_shift": two(Operator.SHIFT_RIGHT),
    "bitwise_xor": two(Operator.BIT_XOR),
    "ceil": ceil,
    "cos": unary(Operator.COS),
    "cosh": unary(Operator.COSH),
    "div": div,
    "eq": equal,
    "erf": erf,
    "exp": exp,
    "expm1": expm1,
    "floor": floor,
    "ge": at_least,
    "gt": greater,
    "isfinite": lambda x: equal(x - x, 0),
    "isinf": lambda x: either(equal(x, math.inf), equal(x, -math.inf)),
    "isnan": is_nan,
    "le": at_most,
    "log": log,
    "log1p": log1p,
    "log10": unary(Operator.LOG10),
    "log2": unary(Operator.LOG2),
    "logical_and": both,
    "logical_not": inverse,
    "logical_xor": lambda x, y: differ(Expr(truth(x)), Expr(truth(y))),
    "logical_or": either,
    "lt": less,
    "maximum": maximum,
    "minimum": minimum,
    "mul": mul,
    "ne": differ,
    "neg": negative,
    "reciprocal": reciprocal,
    "relu": relu,
    "relu6": relu6,
    "round": nearest,
    "rsqrt": rsqrt,
    "sigmoid": sigmoid,
    "sign": sign,
    "silu": silu,
    "sin": unary(Operator.SIN),
    "sinh": unary(Operator.SINH),
    "sqrt": sqrt,
    "square": square,
    "tan": unary(Operator.TAN),
    "tanh": tanh,
    "trunc": trunc,
    "where": where,
}
