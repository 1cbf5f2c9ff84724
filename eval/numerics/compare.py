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

from rag_kernels.eval.messages.protocol import Comparison

UNIT_ROUNDOFF = {torch.float64: 2.0**-53, torch.float32: 2.0**-24, torch.float16: 2.0**-11, torch.bfloat16: 2.0**-8}
LIMITS = {2: (2.0, 4.0), 4: (64.0, 256.0), 8: (64.0, 256.0)}  # by bytes an element: R_rms, R_max
NOISE_SHARE = 4.0  # noise is amplified 16 times; a quarter of it counts as PyTorch's own error
MIN_SLICE = 256  # fewer elements give no stable error of their own
TINY = torch.finfo(torch.float64).tiny


def compare(
    got: torch.Tensor,
    reference: torch.Tensor,
    oracle: torch.Tensor,
    *,
    noise: torch.Tensor | None = None,
    limits: tuple[float, float] | None = None,
) -> Comparison:
    """Judge one output: `got` and `reference` in the problem's dtype, `oracle` in fp64 (or the exact integers).

    `noise` is the error of runs with amplified rounding (`numerics.rounding_noise`), element by element: where inputs
    are unusual it says how ill-conditioned the problem is there, and a candidate is allowed as much. `limits` are
    R_rms and R_max as calibrated for the problem (`eval.sessions.admission`); by default those of the dtype.
    """
    if got.numel() == 0:
        return Comparison(True, 0.0, "")
    if not got.dtype.is_floating_point:
        return _compare_exact(got, reference, oracle)
    finite = torch.isfinite(oracle) & torch.isfinite(reference)
    if not bool(finite.all()):
        unequal = ~finite & ~_same_special(got, reference)
        if bool(unequal.any()):
            return Comparison(False, math.inf, f"{_place(unequal)} differs where the reference is not finite")
        got, reference, oracle = _zeroed(~finite, got, reference, oracle)
        noise = None if noise is None else _zeroed(~finite, noise)[0]
    bad = ~torch.isfinite(got)
    if bool(bad.any()):
        share = float(bad.double().mean())
        return Comparison(False, math.inf, f"{share:.2%} of the elements are not finite, first at {_place(bad)}")
    return _compare_floats(got, reference, oracle, noise, limits or LIMITS[got.element_size()])


def ratios(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor) -> tuple[float, float]:
    """Return R_rms and R_max of a floating-point output: the worst of the whole and of its slices."""
    if got.numel() == 0:
        return 0.0, 0.0
    unknown = ~(torch.isfinite(oracle) & torch.isfinite(reference))
    got, reference, oracle = _zeroed(unknown, got, reference, oracle)
    if not bool(torch.isfinite(got).all()):
        return math.inf, math.inf
    errors = _errors(got, reference, oracle)
    return max(errors.whole, float(errors.r_rms.max())), float(errors.r_max.max())


def _zeroed(mask: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [torch.where(mask, torch.zeros((), dtype=t.dtype, device=t.device), t) for t in tensors]


def _compare_exact(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor) -> Comparison:
    """Return integers and booleans: what the reference says, or what it says in fp64 (rounding can move an index)."""
    wrong = (got != oracle.to(got.dtype)) & (got != reference)
    if not bool(wrong.any()):
        return Comparison(True, 0.0, "")
    share = float(wrong.double().mean())
    return Comparison(False, math.inf, f"{share:.2%} of the elements differ, first at {_place(wrong)}")


@dataclass(frozen=True, slots=True)
class _Errors:
    """Errors of a candidate and of PyTorch, in rows; the ratios of each row and of the whole."""

    error: torch.Tensor
    bound: float  # an error of 1.0 in R_max
    scale: torch.Tensor  # RMS of each row, at least a hundredth of the whole's
    r_rms: torch.Tensor
    r_max: torch.Tensor
    whole: float


def _errors(
    got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor, noise: torch.Tensor | None = None
) -> _Errors:
    unit = UNIT_ROUNDOFF[got.dtype]
    shape = tuple(got.shape)
    rows = shape[0] if len(shape) > 1 and got.numel() // max(1, shape[0]) >= MIN_SLICE else 1
    exact = oracle.reshape(rows, -1).double()
    error = (got.reshape(rows, -1).double() - exact).abs_()
    own = (reference.reshape(rows, -1).double() - exact).abs_()
    if noise is not None:
        own = torch.maximum(own, noise.reshape(rows, -1).double() / NOISE_SHARE)
    whole_scale = _total(exact)
    # A row that is far smaller than the rest is held to the scale of a hundredth of the whole.
    scale = exact.abs().clamp_(min=0.01 * whole_scale)
    r_rms = _rms(error) / torch.maximum(_rms(own), unit * _rms(scale) / math.sqrt(3)).clamp(min=TINY)
    r_max = error.amax(1) / torch.maximum(own.amax(1), unit * scale.amax(1)).clamp(min=TINY)
    whole = _total(error) / max(_total(own), unit * whole_scale / math.sqrt(3), TINY)
    bound = max(float(own.max()), unit * float(scale.max()))
    return _Errors(error, bound, _rms(scale).clamp(min=TINY), r_rms, r_max, whole)


def _compare_floats(
    got: torch.Tensor,
    reference: torch.Tensor,
    oracle: torch.Tensor,
    noise: torch.Tensor | None,
    limits: tuple[float, float],
) -> Comparison:
    errors = _errors(got, reference, oracle, noise)
    error, r_rms, r_max, whole = errors.error, errors.r_rms, errors.r_max, errors.whole
    (rms_limit, max_limit), shape = limits, tuple(got.shape)
    worst = int(torch.argmax(torch.maximum(r_rms / rms_limit, r_max / max_limit)))
    if whole <= rms_limit and float(r_rms[worst]) <= rms_limit and float(r_max[worst]) <= max_limit:
        return Comparison(True, whole, "")
    ratio = max(whole, float(r_rms[worst]))
    at = int(torch.argmax(error[worst])) + worst * error.shape[1]
    expected, found = float(oracle.reshape(-1)[at]), float(got.reshape(-1)[at])
    far = float((error > max_limit * errors.bound).double().mean())
    relative = float((_rms(error) / errors.scale).max())
    where = (
        f"worst at {_index(at, shape)}: {found:.9g} instead of {expected:.9g}; error {ratio:.3g} times PyTorch's own "
        f"(limit {rms_limit:g}); {far:.2%} of the elements are far off"
    )
    return Comparison(False, ratio, where, relative)


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
