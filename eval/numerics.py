"""Is this output right? Compared with an fp64 oracle by the ratio of errors, never by an absolute tolerance.

Comes in: the candidate's output, the reference's and the oracle's, as torch tensors on one device. Goes out: a
`Comparison`. R_rms = rms(c-o) / max(rms(r-o), u*rms(o)/sqrt(3)); R_max likewise with maxima; for the whole and for
slices along the first dimension, so that one wrong row cannot hide. c candidate, r reference, o oracle, u unit
roundoff. Limits: 64 and 256 in fp32 and fp64, 2 and 4 in 16 bits; integers and booleans exactly.
Runs in the reference worker, which holds the answers and never sees candidate code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
LIMITS = {2: (2.0, 4.0), 4: (64.0, 256.0), 8: (64.0, 256.0)}  # by bytes an element: R_rms, R_max
MIN_SLICE = 256  # fewer elements give no stable error of their own
TINY = torch.finfo(torch.float64).tiny


@dataclass(frozen=True, slots=True)
class Comparison:
    """`ratio` is the error over PyTorch's own (1.0 is as exact as PyTorch); `where` says what was wrong."""

    ok: bool
    ratio: float
    where: str


def compare(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor) -> Comparison:
    """Judge one output: `got` and `reference` in the problem's dtype, `oracle` in fp64 (or the exact integers)."""
    if got.numel() == 0:
        return Comparison(True, 0.0, "")
    if not got.dtype.is_floating_point:
        return _compare_exact(got, reference, oracle)
    finite = torch.isfinite(oracle) & torch.isfinite(reference)
    if not bool(finite.all()):
        unequal = ~finite & ~_same_special(got, reference)
        if bool(unequal.any()):
            return Comparison(False, math.inf, f"{_place(unequal)} differs where the reference is not finite")
        zero = torch.zeros((), dtype=got.dtype, device=got.device)
        got, reference = torch.where(finite, got, zero), torch.where(finite, reference, zero)
        oracle = torch.where(finite, oracle, zero.to(oracle.dtype))
    bad = ~torch.isfinite(got)
    if bool(bad.any()):
        share = float(bad.double().mean())
        return Comparison(False, math.inf, f"{share:.2%} of the elements are not finite, first at {_place(bad)}")
    return _compare_floats(got, reference, oracle)


def _compare_exact(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor) -> Comparison:
    """Integers and booleans: what the reference says, or what it says in fp64 (rounding can move an index)."""
    wrong = (got != oracle.to(got.dtype)) & (got != reference)
    if not bool(wrong.any()):
        return Comparison(True, 0.0, "")
    share = float(wrong.double().mean())
    return Comparison(False, math.inf, f"{share:.2%} of the elements differ, first at {_place(wrong)}")


def _compare_floats(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor) -> Comparison:
    unit = UNIT_ROUNDOFF[got.dtype]
    rms_limit, max_limit = LIMITS[got.element_size()]
    shape = tuple(got.shape)
    rows = shape[0] if len(shape) > 1 and got.numel() // max(1, shape[0]) >= MIN_SLICE else 1
    exact = oracle.reshape(rows, -1).double()
    error = (got.reshape(rows, -1).double() - exact).abs_()
    own = (reference.reshape(rows, -1).double() - exact).abs_()
    whole_scale = _total(exact)
    # A row that is far smaller than the rest is held to the scale of a hundredth of the whole.
    scale = exact.abs().clamp_(min=0.01 * whole_scale)
    r_rms = _rms(error) / torch.maximum(_rms(own), unit * _rms(scale) / math.sqrt(3)).clamp(min=TINY)
    r_max = error.amax(1) / torch.maximum(own.amax(1), unit * scale.amax(1)).clamp(min=TINY)
    whole = _total(error) / max(_total(own), unit * whole_scale / math.sqrt(3), TINY)
    worst = int(torch.argmax(torch.maximum(r_rms / rms_limit, r_max / max_limit)))
    if whole <= rms_limit and float(r_rms[worst]) <= rms_limit and float(r_max[worst]) <= max_limit:
        return Comparison(True, whole, "")
    ratio = max(whole, float(r_rms[worst]))
    at = int(torch.argmax(error[worst])) + worst * error.shape[1]
    expected, found = float(oracle.reshape(-1)[at]), float(got.reshape(-1)[at])
    far = float((error > max_limit * max(float(own.max()), unit * float(scale.max()))).double().mean())
    where = (
        f"worst at {_index(at, shape)}: {found:.9g} instead of {expected:.9g}; error {ratio:.3g} times PyTorch's own "
        f"(limit {rms_limit:g}); {far:.2%} of the elements are far off"
    )
    return Comparison(False, ratio, where)


def _rms(a: torch.Tensor) -> torch.Tensor:
    norm: torch.Tensor = torch.linalg.vector_norm(a, dim=1)
    return norm / math.sqrt(a.shape[1])


def _total(a: torch.Tensor) -> float:
    return float(torch.linalg.vector_norm(a)) / math.sqrt(a.numel())


def _same_special(got: torch.Tensor, reference: torch.Tensor) -> torch.Tensor:
    same: torch.Tensor = (torch.isnan(got) & torch.isnan(reference)) | (got == reference)
    return same


def _place(mask: torch.Tensor) -> str:
    return _index(int(torch.argmax(mask.reshape(-1).to(torch.uint8))), tuple(mask.shape))


def _index(flat: int, shape: tuple[int, ...]) -> str:
    index: list[int] = []
    for size in reversed(shape):
        flat, place = divmod(flat, size)
        index.insert(0, place)
    return str(index)
