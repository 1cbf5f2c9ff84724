"""Pointwise coverage: ATen name -> the expression over its operands.

Comes in: the base name of an ATen operator. Goes out: a function of expressions (`ir/expressions.py`), one parameter an
operand. Knows nothing of shapes: the files of `rules/` have the operators that need more than one expression.
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
    erfc,
    exp,
    exp2,
    expm1,
    floor,
    greater,
    inverse,
    is_nan,
    is_negative,
    less,
    log,
    log1p,
    maximum,
    minimum,
    mul,
    nearest,
    negative,
    no_less,
    no_more,
    reciprocal,
    rsqrt,
    sigmoid,
    silu,
    sin,
    softplus,
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
from rag_kernels.offline.lowering.special import bessel, log_ndtr, xlog1py


def bitwise_not(x: Expr) -> Expr:
    return inverse(x) if x.dtype == "bool" else unary(Operator.BIT_NOT)(x)


def relu(x: Expr) -> Expr:
    return no_less(x, 0)


def relu6(x: Expr) -> Expr:
    return no_less(no_more(x, 6), 0)


def sign(x: Expr) -> Expr:
    return cast(x > 0, x.dtype) - cast(x < 0, x.dtype)


def logaddexp(x: Expr, y: Expr) -> Expr:
    """Return log(exp(x) + exp(y)); equal operands may be infinite."""
    return where(equal(x, y), x + math.log(2), maximum(x, y) + softplus(-absolute(x - y)))


def logaddexp2(x: Expr, y: Expr) -> Expr:
    gap = softplus(absolute(x - y) * -math.log(2)) * (1 / math.log(2))
    return where(equal(x, y), x + 1, maximum(x, y) + gap)


def xlogy(x: Expr, y: Expr) -> Expr:
    return where(both(equal(x, 0), inverse(is_nan(y))), 0, x * log(y))


def entropy_term(x: Expr) -> Expr:
    return where(equal(x, 0), 0, where(x < 0, -math.inf, -x * log(x)))


def sinc(x: Expr) -> Expr:
    return where(equal(x, 0), 1, sin(x * math.pi) / (x * math.pi))


def one_or_other(function: Pointwise) -> Pointwise:
    """Return the function of two operands of which one that is NaN does not count."""
    return lambda x, y: where(is_nan(x), y, where(is_nan(y), x, function(x, y)))


POINTWISE: dict[str, Pointwise] = {
    "abs": absolute,
    "acos": unary(Operator.ACOS),
    "acosh": unary(Operator.ACOSH),
    "asin": unary(Operator.ASIN),
    "asinh": unary(Operator.ASINH),
    "atan": unary(Operator.ATAN),
    "atan2": two(Operator.ATAN2),
    "atanh": unary(Operator.ATANH),
    "bitwise_and": two(Operator.BIT_AND),
    "bitwise_left_shift": two(Operator.SHIFT_LEFT),
    "bitwise_not": bitwise_not,
    "bitwise_or": two(Operator.BIT_OR),
    "bitwise_right_shift": two(Operator.SHIFT_RIGHT),
    "bitwise_xor": two(Operator.BIT_XOR),
    "ceil": ceil,
    "copysign": lambda x, y: where(is_negative(y), -absolute(x), absolute(x)),
    "cos": unary(Operator.COS),
    "cosh": unary(Operator.COSH),
    "deg2rad": lambda x: x * (math.pi / 180),
    "div": div,
    "eq": equal,
    "erf": erf,
    "erfc": erfc,
    "erfinv": unary(Operator.ERFINV),
    "exp": exp,
    "exp2": exp2,
    "expm1": expm1,
    "floor": floor,
    "fmax": one_or_other(maximum),
    "fmin": one_or_other(minimum),
    "ge": at_least,
    "gt": greater,
    "heaviside": lambda x, y: where(equal(x, 0), y, cast(x > 0, x.dtype)),
    "hypot": two(Operator.HYPOT),
    "i0": bessel(0, scaled=False),
    "isfinite": lambda x: equal(x - x, 0),
    "isinf": lambda x: either(equal(x, math.inf), equal(x, -math.inf)),
    "isnan": is_nan,
    "ldexp": lambda x, y: x * exp2(y),
    "le": at_most,
    "lgamma": unary(Operator.LGAMMA),
    "log": log,
    "log10": unary(Operator.LOG10),
    "log1p": log1p,
    "log2": unary(Operator.LOG2),
    "logaddexp": logaddexp,
    "logaddexp2": logaddexp2,
    "logical_and": both,
    "logical_not": inverse,
    "logical_or": either,
    "logical_xor": lambda x, y: differ(Expr(truth(x)), Expr(truth(y))),
    "lt": less,
    "maximum": maximum,
    "minimum": minimum,
    "mul": mul,
    "ne": differ,
    "neg": negative,
    "rad2deg": lambda x: x * (180 / math.pi),
    "reciprocal": reciprocal,
    "relu": relu,
    "relu6": relu6,
    "round": nearest,
    "rsqrt": rsqrt,
    "sigmoid": sigmoid,
    "sgn": sign,
    "sign": sign,
    "signbit": is_negative,
    "silu": silu,
    "sin": unary(Operator.SIN),
    "sinc": sinc,
    "sinh": unary(Operator.SINH),
    "special_entr": entropy_term,
    "special_i0e": bessel(0, scaled=True),
    "special_i1": bessel(1, scaled=False),
    "special_i1e": bessel(1, scaled=True),
    "special_log_ndtr": log_ndtr,
    "special_ndtr": lambda x: 0.5 * erfc(x * -(0.5**0.5)),
    "special_xlog1py": xlog1py,
    "special_xlogy": xlogy,
    "sqrt": sqrt,
    "square": square,
    "tan": unary(Operator.TAN),
    "tanh": tanh,
    "trunc": trunc,
    "where": where,
    "xlogy": xlogy,
}
