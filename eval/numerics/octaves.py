"""Is an output right where it is small? Its errors by the magnitude of what is right, beside PyTorch's own there.

Comes in: the candidate's output, the reference's and the oracle's. Goes out: the worst octave, or nothing. The
yardstick of a row is as long as its largest elements: an error beside them may be all of an element that is a
thousandth of these. So elements are put together by the exponent of the right answer, of all rows, and in each of these
octaves errors are held against PyTorch's own in it. What is small because it cancels has large errors in PyTorch too,
and says nothing. A sample is read: what is sought is many elements. Where few of it are far off, as in nearly all
calls, nothing else is asked. Runs in the reference worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rag_kernels.eval.numerics.blocks import blocks, one_thread
from rag_kernels.eval.numerics.compare import NOISE_SHARE, TINY, UNIT_ROUNDOFF, rows_of

SAMPLE = 1 << 14  # elements
LEAST = 48  # elements of an octave, for its errors to have a size
FEW = 0.05
LIMITS = {2: 4.0, 4: 64.0, 8: 64.0}  # by bytes: times PyTorch's error of an octave
# By bytes: errors smaller than this part of an element are a matter of accuracy, which rows are held to.
GROSS = {2: 2.0**-4, 4: 2.0**-10, 8: 2.0**-30}


@dataclass(frozen=True, slots=True)
class Octave:
    """Elements whose right answers have one exponent, of a sample."""

    exponent: int
    share: float  # of the sample
    error: float  # relative, the root of its mean square
    own: float  # PyTorch's
    off: float  # share of them whose errors are gross: a few are steps, or chance

    @property
    def told(self) -> str:
        """What is wrong, in words."""
        between = f"{2.0 ** (self.exponent - 1):.3g} and {2.0**self.exponent:.3g}"
        return (
            f"where results are between {between} ({self.share:.2%} of the elements) errors are {self.error:.2g} of "
            f"the element, PyTorch's at most {self.own:.2g}"
        )


def small_fault(
    got: torch.Tensor,
    reference: torch.Tensor,
    oracle: torch.Tensor,
    *,
    noise: torch.Tensor | None = None,
    near: bool = False,
) -> Octave | None:
    """Return the octave in which an output that is right by its rows is most wrong, if there is one.

    `noise` is the error of runs with amplified rounding, element by element, where it is known. An element may be off
    by a rounding of what its row has, but where results are sums of what is `near` to them.
    """
    size, at = got.element_size(), _sample(got)
    if len(at) < LEAST or not _may_be_off(got, oracle, at):
        return None
    found = [
        octave
        for octave in octaves(got, reference, oracle, at, noise=noise, near=near)
        if octave.error > max(GROSS[size], LIMITS[size] * octave.own) and octave.off > FEW
    ]
    return max(found, key=lambda octave: octave.error, default=None)


def _sample(got: torch.Tensor) -> torch.Tensor:
    """Return the places of the elements that are looked at."""
    count, generator = got.numel(), torch.Generator(got.device).manual_seed(int(torch.randint(1 << 30, ())))
    if count > SAMPLE:
        return torch.randint(0, count, (SAMPLE,), generator=generator, device=got.device)
    return torch.arange(count, device=got.device)


def _may_be_off(got: torch.Tensor, oracle: torch.Tensor, at: torch.Tensor) -> bool:
    """Return whether as many elements of the sample are far off as the smallest octave with a fault has."""
    with one_thread():
        exact = oracle.reshape(-1)[at].double()
        off = (got.reshape(-1)[at].double() - exact).abs_() > GROSS[got.element_size()] * exact.abs()
        return int(off.sum()) > FEW * LEAST


def octaves(
    got: torch.Tensor,
    reference: torch.Tensor,
    oracle: torch.Tensor,
    at: torch.Tensor,
    *,
    noise: torch.Tensor | None = None,
    near: bool = False,
) -> Iterator[Octave]:
    """Yield the octaves of a sample of an output that have enough elements, the least first."""
    unit, rows, count = UNIT_ROUNDOFF[got.dtype], rows_of(got), got.numel()
    with one_thread():
        exact = oracle.reshape(-1)[at].double()
        mine, own = ((t.reshape(-1)[at].double() - exact).abs_() for t in (got, reference))
        if noise is not None:
            own = torch.maximum(own, noise.reshape(-1)[at].double() / NOISE_SHARE)
        sound = torch.isfinite(exact) & torch.isfinite(own) & torch.isfinite(mine) & (exact != 0)
        if not near:
            scale = _row_scale(oracle, rows)[at // (count // rows)]
            own = torch.maximum(own, UNIT_ROUNDOFF[torch.float32 if got.element_size() < 8 else torch.float64] * scale)
        own = torch.maximum(own, unit * exact.abs())
        exponent = torch.frexp(exact).exponent
        if not bool(sound.any()):
            return
        least = int(exponent[sound].min())
        bins = (exponent - least).clamp_(min=0).long()
        off = (mine > GROSS[got.element_size()] * exact.abs()).double()
        sums = [
            torch.bincount(bins, weights=torch.where(sound, values, 0.0))
            for values in (torch.ones_like(exact), exact.square(), mine.square(), own.square(), off)
        ]
    for bin_, (n, square, my, theirs, gross) in enumerate(torch.stack(sums, 1).tolist()):
        if n >= LEAST:
            norm = max(square, TINY)
            yield Octave(bin_ + least, n / len(at), math.sqrt(my / norm), math.sqrt(theirs / norm), gross / n)


def _row_scale(oracle: torch.Tensor, rows: int) -> torch.Tensor:
    """Return the root mean square of each row's finite elements, all of them: a sample may hold one of a row."""
    total, number = torch.zeros(2, rows, dtype=torch.float64, device=oracle.device).unbind()
    matrix = oracle.reshape(rows, -1)
    for block in blocks(matrix):
        exact = matrix[block].double()
        finite = torch.isfinite(exact)
        total[block[0]] += torch.where(finite, exact, 0.0).square().sum(1)
        number[block[0]] += finite.sum(1)
    return (total / number.clamp_(min=1)).sqrt_()
