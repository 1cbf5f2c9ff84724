"""Is this output right? Compared with an fp64 oracle by the ratio of errors, never by an absolute tolerance.

Comes in: the candidate's output, the reference's and the oracle's, as torch tensors on one device. Goes out: a
`Comparison`. R_rms = rms(c-o) / max(rms(r-o), u*rms(o)/sqrt(3)); R_max likewise with maxima; for the whole and for
slices along the first dimension, so that one wrong row cannot hide. c candidate, r reference, o oracle, u unit
roundoff. Limits: 64 and 256 in fp32 and fp64, 2 and 4 in 16 and 8 bits; integers and booleans exactly, and so are
floats of 8 bits, which are as few (`numerics.steps.rounded_as_owed`).
Runs in the reference worker, which holds the answers and never sees candidate code.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from rag_kernels.eval.messages.to_reference import Comparison
from rag_kernels.eval.numerics.blocks import blocks, one_thread, pieces
from rag_kernels.eval.numerics.eight_bits import EIGHT_BITS, comparable, in_float32, narrowed

UNIT_ROUNDOFF = {
    torch.float64: 2.0**-53,
    torch.float32: 2.0**-24,
    torch.float16: 2.0**-11,
    torch.bfloat16: 2.0**-8,
    torch.float8_e4m3fn: 2.0**-4,
    torch.float8_e5m2: 2.0**-3,
}
LIMITS = {1: (2.0, 4.0), 2: (2.0, 4.0), 4: (64.0, 256.0), 8: (64.0, 256.0)}  # by bytes an element: R_rms, R_max
NOISE_SHARE = 4.0  # noise is amplified 16 times; a quarter of it counts as PyTorch's own error
MIN_SLICE = 256  # fewer elements give no stable error of their own
BRINK = 1.01  # times the largest number: beyond, a result is infinite however it is rounded
TINY = torch.finfo(torch.float64).tiny


def compare(
    got: torch.Tensor,
    reference: torch.Tensor,
    oracle: torch.Tensor,
    *,
    noise: torch.Tensor | None = None,
    limits: tuple[float, float] | None = None,
    owed: Yardstick | None = None,
) -> Comparison:
    """Judge one output: `got` and `reference` in the problem's dtype, `oracle` in fp64 (or the exact integers).

    `noise` is the error of runs with amplified rounding (`numerics.rounding_noise`), element by element: where inputs
    are unusual it says how ill-conditioned the problem is there, and a candidate is allowed as much. `limits` are
    R_rms and R_max as calibrated for the problem (`eval.sessions.admission`); by default those of the dtype. `owed` is
    the `yardstick` of the last three, where it is known.
    """
    if got.numel() == 0:
        return Comparison(True, 0.0, "")
    if got.dtype == torch.bool and bool((odd := got.view(torch.uint8) > 1).any()):
        return Comparison(False, math.inf, f"the byte of {_place(odd)} is neither 0 nor 1, which no truth value may be")
    if not got.dtype.is_floating_point:
        return _compare_exact(got, reference, oracle)
    errors = _errors(got, oracle, owed or yardstick(reference, oracle, noise))
    if not errors.finite:
        dtype, limits = got.dtype, limits or LIMITS[got.element_size()]
        if dtype in EIGHT_BITS:
            got, reference, oracle = _in_range(got, reference, oracle)
        # Where PyTorch alone has no number, what is right is right.
        alone = torch.isfinite(oracle) & ~torch.isfinite(reference) & torch.isfinite(got)
        alone &= oracle.abs() < torch.finfo(dtype).max
        reference = torch.where(alone, oracle.to(reference.dtype), reference)
        finite = torch.isfinite(oracle) & torch.isfinite(reference)
        if got.dtype == torch.float16:  # what overflows on PyTorch's way alone, or by a rounding, is no fault
            open_ = ~torch.isfinite(reference) & (oracle.abs() < BRINK * torch.finfo(got.dtype).max)
            got, reference, oracle = _zeroed(open_, got, reference, oracle)
        unequal = ~finite & ~_same_special(got, reference)
        if bool(unequal.any()):
            return Comparison(False, math.inf, f"{_place(unequal)} differs where the reference is not finite")
        got, reference, oracle = _zeroed(~finite, got, reference, oracle)
        noise = None if noise is None else _zeroed(~(finite & torch.isfinite(noise)), noise)[0]
        bad = ~torch.isfinite(got)
        if bool(bad.any()):
            share = float(bad.double().mean())
            return Comparison(False, math.inf, f"{share:.2%} of the elements are not finite, first at {_place(bad)}")
        errors = _errors(got, oracle, yardstick(reference, oracle, noise, dtype=dtype))
    return _judged(errors, got, oracle, limits or LIMITS[got.element_size()])


def ratios(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor) -> tuple[float, float]:
    """Return R_rms and R_max of a floating-point output: the worst of the whole and of its slices."""
    if got.numel() == 0:
        return 0.0, 0.0
    errors = _errors(got, oracle, yardstick(reference, oracle))
    if not errors.finite:
        dtype, got, reference = got.dtype, in_float32(got), in_float32(reference)
        unknown = ~(torch.isfinite(oracle) & torch.isfinite(reference))
        got, reference, oracle = _zeroed(unknown, got, reference, oracle)
        errors = _errors(got, oracle, yardstick(reference, oracle, dtype=dtype))
        if not math.isfinite(errors.whole):
            return math.inf, math.inf
    return max(errors.whole, float(errors.r_rms.max())), float(errors.r_max.max())


def exceeding(got: torch.Tensor, oracle: torch.Tensor, owed: Yardstick, limits: tuple[float, float]) -> torch.Tensor:
    """Return which rows of an output are farther off than the limits let them, and, last, whether the whole is."""
    errors = _errors(got, oracle, owed)
    rows = ~((errors.r_rms <= limits[0]) & (errors.r_max <= limits[1]))
    return torch.cat([rows, rows.new_tensor([not errors.whole <= limits[0]])])


def _in_range(
    got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return an output of eight bits, and what it is compared with, as numbers.

    Torch before 2.13 made NaN of what is past the range of e4m3, which is the largest number since: either will do.
    """
    most = torch.finfo(reference.dtype).max
    right, mine, own = oracle.to(torch.float32), comparable(got), comparable(reference)
    if reference.dtype == torch.float8_e5m2:
        return mine, own, comparable(narrowed(oracle, reference.dtype)).to(oracle.dtype)
    past = torch.isnan(own) & (oracle.abs() >= most)
    return torch.where(past & torch.isnan(mine), right, mine), torch.where(past, right, own), oracle


def _zeroed(mask: torch.Tensor, *tensors: torch.Tensor) -> list[torch.Tensor]:
    return [torch.where(mask, torch.zeros((), dtype=t.dtype, device=t.device), t) for t in tensors]


def _compare_exact(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor) -> Comparison:
    """Return integers and booleans: what the reference says, or what it says in fp64 (rounding can move an index)."""
    wrong = _wrong(got, reference, oracle)
    if not bool(wrong.any()):
        return Comparison(True, 0.0, "")
    share = float(wrong.double().mean())
    one_apart = bool(((got[wrong].long() - reference[wrong].long()).abs() <= 1).all())
    where = f"{share:.2%} of the elements differ, first at {_place(wrong)}"
    return Comparison(False, math.inf, where, one_apart=one_apart)


def _wrong(got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor) -> torch.Tensor:
    return (got != oracle.to(got.dtype)) & (got != reference)


def decided_by_rounding(
    got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor, again: Iterable[torch.Tensor]
) -> bool:
    """Return whether integers are one apart at most, and only where rounding decides what is right.

    `again` is what PyTorch gives in one run after another with amplified rounding. Where a number lies between two
    integers, or at a threshold, one more rounding on the way to it moves the result by one, in some of these runs too:
    every element that differs (of many, all but a few) has to be such. Where rounding moves a result farther (an index
    of a largest element), nothing is decided by it.
    """
    wrong, moved = _wrong(got, reference, oracle), torch.zeros_like(got, dtype=torch.bool)
    count = int(wrong.sum())
    if bool((wrong & ((got.long() - reference.long()).abs() > 1)).any()):
        return False
    for other in again:
        if bool(((other.long() - reference.long()).abs() > 1).any()):
            return False
        moved |= other != reference
        if int((wrong & ~moved).sum()) <= count // 64:
            return count <= int(moved.sum())
    return False


MOST_BITS = 62  # that 64 have room for, with a sign and one more


def unpacked(value: torch.Tensor, near: torch.Tensor, at: Sequence[int]) -> torch.Tensor:
    """Return the whole numbers in the bits of each element, of which each begins `at` a bit or at the lowest.

    As far from those of `near` as they are in so many bits: of four, 15 is -1 beside 0.
    """
    ends = [*at, min(8 * near.element_size(), MOST_BITS)]
    lines = []
    for begin, end in zip((0, *at), ends, strict=True):
        span = 1 << (end - begin)
        mine, other = ((v.long() >> begin) & (span - 1) for v in (value, near))
        lines.append(other + (mine - other + span // 2) % span - span // 2)
    return torch.stack(lines, -1)


@dataclass(frozen=True, slots=True)
class Yardstick:
    """What errors of an output are held against, by rows and in the whole."""

    finite: bool  # every element of PyTorch's and of what is right
    rms: torch.Tensor  # of each row: an error of 1.0 in R_rms
    largest: torch.Tensor  # of each row: an error of 1.0 in R_max
    scale: torch.Tensor  # RMS of each row, at least a hundredth of the whole's
    whole: float
    bound: float


@dataclass(frozen=True, slots=True)
class _Errors:
    """A candidate's errors, and their ratios to PyTorch's own; `finite`: every element of either."""

    finite: bool
    r_rms: torch.Tensor
    r_max: torch.Tensor
    whole: float
    bound: float  # an error of 1.0 in R_max
    relative: float  # the worst row's RMS over its scale


def yardstick(
    reference: torch.Tensor,
    oracle: torch.Tensor,
    noise: torch.Tensor | None = None,
    *,
    dtype: torch.dtype | None = None,
) -> Yardstick:
    """Return what PyTorch's own errors (or the noise, where it is more) and the roundoff allow.

    `dtype` is that of results, where they come in_float32.
    """
    dtype = dtype or reference.dtype
    unit, rows = UNIT_ROUNDOFF[dtype], rows_of(reference)
    # Of eight bits so many are below the normal ones that half a step of those, which is the same for all, counts.
    least = torch.finfo(dtype).tiny if dtype in EIGHT_BITS else 0.0
    own, exact, scale = (_Rows(reference, rows) for _ in range(3))
    reference, oracle = reference.reshape(rows, -1), oracle.reshape(rows, -1)
    noise = None if noise is None else noise.reshape(rows, -1)
    with one_thread():
        for block in blocks(reference):
            right = oracle[block].double()
            exact.add(block, right)
            error = reference[block].double() - right
            if noise is not None:
                error = torch.maximum(error.abs_(), noise[block].double() / NOISE_SHARE)
            own.add(block, error)
        whole = exact.total()
        # A row that is far smaller than the rest is held to the scale of a hundredth of the whole.
        for block in blocks(reference):
            scale.add(block, oracle[block].double().abs().clamp_(min=max(least, 0.01 * whole)))
    return Yardstick(
        finite=math.isfinite(own.total()) and math.isfinite(whole),
        rms=torch.maximum(own.rms(), unit * scale.rms() / math.sqrt(3)).clamp(min=TINY),
        largest=torch.maximum(own.largest, unit * scale.largest).clamp(min=TINY),
        scale=scale.rms().clamp(min=TINY),
        whole=max(own.total(), unit * max(whole, least) / math.sqrt(3), TINY),
        bound=max(float(own.largest.max()), unit * float(scale.largest.max())),
    )


def _errors(got: torch.Tensor, oracle: torch.Tensor, owed: Yardstick) -> _Errors:
    """Read both in blocks, on a CPU by one thread: fp64 copies of whole tensors would take most of a verdict's time."""
    rows = rows_of(got)
    error = _Rows(got, rows)
    got, oracle = got.reshape(rows, -1), oracle.reshape(rows, -1)
    with one_thread():
        for block in blocks(got):
            error.add(block, got[block].double() - oracle[block].double())
    return _Errors(
        finite=owed.finite and math.isfinite(error.total()),
        r_rms=error.rms() / owed.rms,
        r_max=error.largest / owed.largest,
        whole=error.total() / owed.whole,
        bound=owed.bound,
        relative=float((error.rms() / owed.scale).max()),
    )


def rows_of(tensor: torch.Tensor) -> int:
    """Return into how many rows a tensor is cut: along the first dimension, if they are long enough."""
    rows = tensor.shape[0] if tensor.dim() > 1 else 1
    return rows if tensor.numel() // max(1, rows) >= MIN_SLICE else 1


def own_error(reference: torch.Tensor, oracle: torch.Tensor) -> float:
    """Return the relative error of an output as a whole; infinite where either is not finite."""
    if reference.numel() == 0:
        return 0.0
    rows = rows_of(reference)
    error, exact = _Rows(reference, rows), _Rows(reference, rows)
    reference, oracle = reference.reshape(rows, -1), oracle.reshape(rows, -1)
    with one_thread():
        for block in blocks(reference):
            right = oracle[block].double()
            exact.add(block, right)
            error.add(block, reference[block].double() - right)
    whole, right_whole = error.total(), exact.total()
    return whole / max(right_whole, TINY) if math.isfinite(whole) and math.isfinite(right_whole) else math.inf


def largest_error(got: torch.Tensor, oracle: torch.Tensor, known: torch.Tensor | None) -> torch.Tensor:
    """Return the greater of an output's errors and those `known`, element by element, which are changed."""
    wide = torch.float64 if got.dtype == torch.float64 else torch.float32
    worst = torch.zeros(got.shape, dtype=wide, device=got.device) if known is None else known
    flat, exact, so_far = got.reshape(-1), oracle.reshape(-1), worst.view(-1)
    with one_thread():
        for piece in pieces(flat):
            error = (flat[piece].double() - exact[piece].double()).abs_()
            so_far[piece] = torch.maximum(so_far[piece], error.to(wide))
    return worst


class _Rows:
    """The norm and the largest magnitude of each row of a matrix that is seen block by block."""

    def __init__(self, like: torch.Tensor, rows: int) -> None:
        self.columns = like.numel() // rows
        self.norm, self.largest = torch.zeros(2, rows, dtype=torch.float64, device=like.device).unbind()

    def add(self, block: tuple[slice, slice], values: torch.Tensor) -> None:
        """Add a block of fp64 values."""
        rows = block[0]
        norm = torch.linalg.vector_norm(values, dim=1)
        self.norm[rows] = torch.hypot(self.norm[rows], norm)
        self.largest[rows] = torch.maximum(self.largest[rows], values.abs().amax(1))

    def rms(self) -> torch.Tensor:
        """Return the root of each row's mean square."""
        return self.norm / math.sqrt(self.columns)

    def total(self) -> float:
        """Return the root of the whole's mean square."""
        return float(torch.linalg.vector_norm(self.norm)) / math.sqrt(self.columns * len(self.norm))


def _judged(errors: _Errors, got: torch.Tensor, oracle: torch.Tensor, limits: tuple[float, float]) -> Comparison:
    (rms_limit, max_limit), r_rms, r_max = limits, errors.r_rms, errors.r_max
    worst = int(torch.argmax(torch.maximum(r_rms / rms_limit, r_max / max_limit)))
    if errors.whole <= rms_limit and float(r_rms[worst]) <= rms_limit and float(r_max[worst]) <= max_limit:
        return Comparison(True, errors.whole, "")
    ratio = max(errors.whole, float(r_rms[worst]))
    shape, rows = tuple(got.shape), len(r_rms)
    got, oracle = got.reshape(rows, -1), oracle.reshape(rows, -1)
    at = int(torch.argmax((got[worst].double() - oracle[worst].double()).abs_()))
    expected, found = float(oracle[worst, at]), float(got[worst, at])
    allowed = max_limit * errors.bound
    far = sum(int(((got[b].double() - oracle[b].double()).abs_() > allowed).sum()) for b in blocks(got)) / got.numel()
    what = f"error {ratio:.3g} times PyTorch's own (limit {rms_limit:g})"
    if ratio <= rms_limit:
        what = f"largest error of a row {float(r_max[worst]):.3g} times PyTorch's own largest (limit {max_limit:g})"
    where = (
        f"worst at {_index(at + worst * got.shape[1], shape)}: {found:.9g} instead of {expected:.9g}; "
        f"{what}; {far:.2%} of the elements are far off"
    )
    return Comparison(False, ratio, where, errors.relative)


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
