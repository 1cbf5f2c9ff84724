"""Is an output right where it is small? Its errors by the magnitude of what is right, beside PyTorch's own there.

Comes in: the candidate's output, the reference's and the oracle's. Goes out: the worst octave, or nothing. The
yardstick of a row is as long as its largest elements: an error beside them may be all of an element that is a
thousandth of these. So elements are put together by the exponent of the right answer, of all rows, and in each of these
octaves errors are held against PyTorch's own in it. What is small because it cancels has large errors in PyTorch too,
and says nothing. A sample is read: what is sought is many elements. Runs in the reference worker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from rag_kernels.eval.numerics.blocks import one_thread
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
    got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor, *, noise: torch.Tensor | None = None
) -> Octave | None:
    """Return the octave in which an output that is right by its rows is most wrong, if there is one.

    `noise` is the error of runs with amplified rounding, element by element, where it is known.
    """
    size = got.element_size()
    if got.numel() < LEAST:
        return None
    found = [
        octave
        for octave in octaves(got, reference, oracle, noise=noise)
        if octave.error > max(GROSS[size], LIMITS[size] * octave.own) and octave.off > FEW
    ]
    return max(found, key=lambda octave: octave.error, default=None)


def octaves(
    got: torch.Tensor, reference: torch.Tensor, oracle: torch.Tensor, *, noise: torch.Tensor | None = None
) -> Iterator[Octave]:
    """Yield the octaves of an output that have enough elements, the least first."""
    unit, rows = UNIT_ROUNDOFF[got.dtype], rows_of(got)
    count, generator = got.numel(), torch.Generator(got.device).manual_seed(int(torch.randint(1 << 30, ())))
    if count > SAMPLE:
        at = torch.randint(0, count, (SAMPLE,), generator=generator, device=got.device)
    else:
        at = torch.arange(count, device=got.device)
    with one_thread():
        exact = oracle.reshape(-1)[at].double()
        mine, own = ((t.reshape(-1)[at].double() - exact).abs_() for t in (got, reference))
        if noise is not None:
            own = torch.maximum(own, noise.reshape(-1)[at].double() / NOISE_SHARE)
        sound = torch.isfinite(exact) & torch.isfinite(own) & torch.isfinite(mine) & (exact != 0)
        row = at // (count // rows)
        scale = _row_scale(exact, row, rows)
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


def _row_scale(exact: torch.Tensor, row: torch.Tensor, rows: int) -> torch.Tensor:
    """Return for each element of a sample the root mean square of its row's."""
    squares = torch.where(torch.isfinite(exact), exact, 0.0).square()
    total = torch.zeros(rows, dtype=torch.float64, device=exact.device).index_add_(0, row, squares)
    number = torch.bincount(row, minlength=rows).clamp_(min=1)
    return (total / number).sqrt_()[row]
