"""Special functions, as expressions of polynomials: Bessel functions, and the logarithm of the normal distribution.

Comes in: an expression of floats of at most 32 bits, for which the coefficients are. Goes out: an expression, within a
few units in the last place of float32. float64 stays with the library. Knows nothing of graphs.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import (
    Expr,
    Pointwise,
    absolute,
    both,
    equal,
    erfc,
    exp,
    inverse,
    is_nan,
    log,
    log1p,
    minimum,
    sqrt,
    where,
)

# Of I0(x) and of I1(x) / x by powers of x^2 up to 8, and of exp(-x) sqrt(x) I(x) by powers of 1 / x beyond.
NEAR = (
    (
        1.0,
        0.249999998,
        0.01562500216,
        4.34026962e-4,
        6.781830663e-6,
        6.78023527e-8,
        4.717998519e-10,
        2.372138791e-12,
        1.006956381e-14,
        1.991337546e-17,
        1.356638677e-19,
    ),
    (
        0.5,
        0.06249999982,
        2.604166827e-3,
        5.425341899e-5,
        6.781770388e-7,
        5.650618597e-9,
        3.368225448e-11,
        1.487117587e-13,
        5.525325564e-16,
        1.052839599e-18,
        5.967306689e-21,
    ),
)
FAR = (
    (0.3989422809, 0.04986741116, 0.02809531181, 0.02723750305, 0.08530292247, -0.3067545955, 1.830429608),
    (0.3989422798, -0.1496029221, -0.04680239666, -0.03864401612, -0.1036039416, 0.3388887116, -2.079182748),
)
# Of (1 + 2a) exp(a^2) erfc(a) - 1 by powers of (a - 2) / (a + 2).
SCALED_ERFC = (
    *(0.276978374, -0.0927639008, -0.166031346, 0.164053187, -0.0542052537, -8.04484636e-3),
    *(8.63880012e-3, 1.27428921e-3, -1.25352468e-3, -3.65711370e-4, 2.59649798e-5),
)
INV_SQRT2 = 0.5**0.5


def polynomial(x: Expr, coefficients: Sequence[float]) -> Expr:
    """Return the sum of the coefficients times powers of x, the lowest first."""
    *rest, last = coefficients
    total = x * 0 + last
    for coefficient in reversed(rest):
        total = total * x + coefficient
    return total


def single(x: Expr) -> Expr:
    """Return what coefficients are exact enough for."""
    if x.dtype == "float64":
        raise ir.Unfusable("a special function of float64")
    return x


def bessel(order: int, *, scaled: bool) -> Pointwise:
    """Return the modified Bessel function of order 0 or 1, or it times exp(-|x|)."""

    def function(x: Expr) -> Expr:
        a = absolute(single(x))
        near, far = polynomial(x * x, NEAR[order]), polynomial(1 / a, FAR[order]) / sqrt(a)
        if scaled:
            near = near * exp(-a)
        else:
            half = exp(a * 0.5)  # exp(a) overflows before the function does
            far = half * far * half
        return where(a <= 8, near * x, where(x < 0, -far, far)) if order else where(a <= 8, near, far)

    return function


def log_ndtr(x: Expr) -> Expr:
    """Return the logarithm of the normal distribution, which is itself nothing far below zero."""
    a = minimum(single(x) * -INV_SQRT2, 1e18)
    scaled = (polynomial((a - 2) / (a + 2), SCALED_ERFC) + 1) / (1 + 2 * a)
    return where(x < -1, log(scaled * 0.5) - x * x * 0.5, log1p(erfc(x * INV_SQRT2) * -0.5))


def xlog1py(x: Expr, y: Expr) -> Expr:
    return where(both(equal(x, 0), inverse(is_nan(y))), 0, x * log1p(y))
