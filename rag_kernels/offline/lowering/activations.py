"""Activation functions with parameters, as expressions.

Comes in: expressions of a tensor and of its numbers. Goes out: an expression. Knows nothing of graphs.
"""

from __future__ import annotations

from rag_kernels.offline.ir.expressions import Expr, both, erf, exp, expm1, softplus, tanh, where


def leaky_relu(x: Expr, slope: Expr) -> Expr:
    return where(x > 0, x, x * slope)


def elu(x: Expr, alpha: Expr, scale: Expr, input_scale: Expr) -> Expr:
    return where(x > 0, x * scale, expm1(x * input_scale) * alpha * scale)


def celu(x: Expr, alpha: Expr) -> Expr:
    return where(x > 0, x, alpha * expm1(x / alpha))


def selu(x: Expr) -> Expr:
    return 1.0507009873554805 * where(x > 0, x, 1.6732632423543772 * expm1(x))


def log_sigmoid(x: Expr) -> Expr:
    return -softplus(-x)


def hardsigmoid(x: Expr) -> Expr:
    return where(x <= -3, 0, where(x >= 3, 1, x / 6 + 0.5))


def hardswish(x: Expr) -> Expr:
    return x * where(x <= -3, 0, where(x >= 3, 6, x + 3)) / 6


def threshold(x: Expr, limit: Expr, value: Expr) -> Expr:
    return where(x <= limit, value, x)


def hardshrink(x: Expr, limit: Expr) -> Expr:
    return where(both(x >= -limit, x <= limit), 0, x)


def softshrink(x: Expr, limit: Expr) -> Expr:
    return where(x > limit, x - limit, where(x < -limit, x + limit, x * 0))


def gelu_tanh(x: Expr) -> Expr:
    return 0.5 * x * (1 + tanh(0.7978845608028654 * (x + 0.044715 * x * x * x)))


def gelu_erf(x: Expr) -> Expr:
    return x * 0.5 * (1 + erf(x * 0.7071067811865476))


def mish(x: Expr) -> Expr:
    """Return x * tanh(log(1 + e)) with e = exp(x), as x * n / (n + 2) of n = e * (e + 2); beyond 20 that is x."""
    e = exp(where(x > 20, 20, x))
    n = e * (e + 2)
    return x * (n / (n + 2))
