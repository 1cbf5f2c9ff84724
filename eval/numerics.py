"""Is this output right? Compared with an fp64 oracle by the ratio of errors, never by an absolute tolerance.

Comes in: raw bytes of the candidate's output, the reference's output and the oracle. Goes out: a `Comparison`.
R_rms = rms(c-o) / max(rms(r-o), u*rms(o)/sqrt(3)); R_max likewise with maxima; globally, and for slices along the
first dimension, so that one wrong row cannot hide. c candidate, r reference, o oracle, u unit roundoff.
Thresholds: 64 and 256 in fp32 and fp64, 2 and 4 in 16 bits; integers and booleans exactly. Numpy only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eval.records import TensorSpec

Floats = NDArray[np.float64]

UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}
LIMITS = {"float64": (64.0, 256.0), "float32": (64.0, 256.0), "float16": (2.0, 4.0), "bfloat16": (2.0, 4.0)}
MIN_SLICE = 256  # fewer elements give no stable error of their own


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` is R_rms over its threshold's scale (1.0 is as exact as PyTorch); `where` says what was wrong."""

    ok: bool
    ratio: float
    where: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What one output should be: the reference's own, and the oracle's, as float64 (or exact integers)."""

    spec: TensorSpec
    reference: NDArray[np.generic]
    oracle: NDArray[np.generic]


def values(raw: NDArray[np.uint8], spec: TensorSpec) -> NDArray[np.generic]:
    """Bytes to numbers: float64 for floats (bfloat16 by hand, numpy has none), native for integers and bools."""
    if spec.dtype == "bfloat16":
        wide = raw.view(np.uint16).astype(np.uint32) << np.uint32(16)
        return wide.view(np.float32).astype(np.float64).reshape(spec.shape)
    typed = raw.view(np.dtype(spec.dtype)).reshape(spec.shape)
    return typed.astype(np.float64) if spec.dtype in UNIT_ROUNDOFF else typed


def compare(candidate: NDArray[np.uint8], expected: Expected) -> Comparison:
    """Judge one output."""
    spec = expected.spec
    got = values(candidate, spec)
    if spec.dtype not in UNIT_ROUNDOFF:
        return _compare_exact(got, expected)
    reference, oracle = expected.reference.astype(np.float64), expected.oracle.astype(np.float64)
    finite = np.isfinite(oracle) & np.isfinite(reference)
    if not bool(np.all(finite)):
        unequal = ~finite & ~_same_special(got, reference)
        if bool(np.any(unequal)):
            return Comparison(False, math.inf, f"{_place(unequal)} differs where the reference is not finite")
        got, reference, oracle = (np.where(finite, a, 0.0) for a in (got, reference, oracle))
    floats = got.astype(np.float64)
    bad = ~np.isfinite(floats)
    if bool(np.any(bad)):
        share = float(np.mean(bad))
        return Comparison(False, math.inf, f"{share:.2%} of the elements are not finite, first at {_place(bad)}")
    return _compare_floats(floats, reference, oracle, spec)


def _compare_exact(got: NDArray[np.generic], expected: Expected) -> Comparison:
    """Integers and booleans: what the reference says, or what it says in fp64 (rounding can move an index)."""
    wrong = (got != expected.oracle.astype(got.dtype)) & (got != expected.reference)
    if not bool(np.any(wrong)):
        return Comparison(True, 0.0, "")
    return Comparison(False, math.inf, f"{float(np.mean(wrong)):.2%} of the elements differ, first at {_place(wrong)}")


def _compare_floats(got: Floats, reference: Floats, oracle: Floats, spec: TensorSpec) -> Comparison:
    unit = UNIT_ROUNDOFF[spec.dtype]
    rms_limit, max_limit = LIMITS[spec.dtype]
    rows = spec.shape[0] if len(spec.shape) > 1 and got.size // max(1, spec.shape[0]) >= MIN_SLICE else 1
    error, own = np.abs(got - oracle).reshape(rows, -1), np.abs(reference - oracle).reshape(rows, -1)
    # A row that is far smaller than the rest is held to the scale of a hundredth of the whole.
    scale = np.maximum(np.abs(oracle).reshape(rows, -1), 0.01 * _total(oracle))
    if error.size == 0:
        return Comparison(True, 0.0, "")
    r_rms = _rms(error) / _floor(_rms(own), unit * _rms(scale) / math.sqrt(3))
    r_max = error.max(axis=1) / _floor(own.max(axis=1), unit * scale.max(axis=1))
    whole = float(_total(error) / max(_total(own), unit * _total(scale) / math.sqrt(3), np.finfo(np.float64).tiny))
    worst = int(np.argmax(np.maximum(r_rms / rms_limit, r_max / max_limit)))
    if whole <= rms_limit and r_rms[worst] <= rms_limit and r_max[worst] <= max_limit:
        return Comparison(True, whole, "")
    ratio = max(whole, float(r_rms[worst]))
    at = int(np.argmax(error[worst])) + worst * error.shape[1]
    index = tuple(int(i) for i in np.unravel_index(at, spec.shape)) if spec.shape else ()
    expected, found = float(oracle.reshape(-1)[at]), float(got.reshape(-1)[at])
    share = float(np.mean(error > max_limit * _floor(own.max(), unit * scale.max())))
    return Comparison(
        False, ratio,
        f"worst at {list(index)}: {found:.9g} instead of {expected:.9g}; error {ratio:.3g} times PyTorch's own "
        f"(limit {rms_limit:g}); {share:.2%} of the elements are far off",
    )  # fmt: skip


def _rms(a: Floats) -> Floats:
    result: Floats = np.sqrt(np.mean(np.square(a), axis=1))
    return result


def _total(a: Floats) -> float:
    return float(np.sqrt(np.mean(np.square(a))))


def _floor(a: Floats, b: Floats) -> Floats:
    result: Floats = np.maximum(np.maximum(a, b), np.finfo(np.float64).tiny)
    return result


def _same_special(got: NDArray[np.generic], reference: NDArray[np.generic]) -> NDArray[np.bool_]:
    a, b = got.astype(np.float64), reference.astype(np.float64)
    same: NDArray[np.bool_] = (np.isnan(a) & np.isnan(b)) | (a == b)
    return same


def _place(mask: NDArray[np.bool_]) -> str:
    index = np.unravel_index(int(np.argmax(mask)), mask.shape) if mask.shape else ()
    return str([int(i) for i in index])
