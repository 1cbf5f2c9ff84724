"""Do the errors of a product go with what its factors would lose if they were cut to fewer bits?

Comes in: an output on ordinary content, the exact one, and this as it moves in fp64 where every factor of a product is
moved to the middle of all numbers that have its first so many bits. Goes out: how much of that is in its errors.
Rounding in any order of summation has nothing to do with the last digits of factors, however large its errors are; a
kernel that keeps fewer bits of factors, cut off or rounded, has just these errors: how far a number is from that middle
is a part, all of it, of what either loses. (Where it rounds to exactly so many bits it is minus a half of it.) Unlike a
probe it needs no content that a kernel could know it by, and no factor that is an argument. Runs in the reference
worker.
"""

from __future__ import annotations

import math

import torch

BITS = (18, 15)  # significant ones, of which a kernel keeps fewer: two terms of bf16 have sixteen
COARSER = {"bf16": 9, "tf32": 12}  # by what a kernel computes in that keeps fewer
GOES_WITH = 0.05  # of what is lost, in the errors: one factor of many may be the one that is cut
COARSE_SHARE = 0.3  # of what is lost at a class's bits: less where what is cut has more bits
SURE = 6.0  # times what chance gives
LEAST, LINES = 512, 64  # elements; parts of an output, whose differences say what chance gives
MOST = 1 << 16  # elements of a part


def middle(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Return for each float the middle of those that have its first so many significant bits; zero stays."""
    mantissa, exponent = torch.frexp(value)
    return torch.ldexp(((mantissa * 2.0**bits).trunc() + 0.5 * mantissa.sign()) * 2.0**-bits, exponent)


def goes_with(got: torch.Tensor, exact: torch.Tensor, moved: torch.Tensor) -> float:
    """Return how much of what is lost there is in the errors, or 0 where that may be chance or is none of it.

    `moved` is the exact output with its factors moved. That all of an output is larger by a part says nothing.
    """
    if got.numel() < LEAST:
        return 0.0
    got, exact, moved = (_sampled(t).double() for t in (got, exact, moved))
    error, lost = got - exact, moved - exact
    known = torch.isfinite(error) & torch.isfinite(lost)
    exact, error, lost = (t.where(known, 0.0) for t in (exact, error, lost))
    norm = float(exact.square().sum())
    error, lost = (t - exact * (float((t * exact).sum()) / max(norm, 1e-300)) for t in (error, lost))
    total = float(lost.square().sum())
    if not total:
        return 0.0
    lines = (error * lost).reshape(LINES, -1).sum(1)
    sure = float(lines.mean()) > SURE * max(float(lines.std()) / math.sqrt(LINES), 1e-300)
    return float((error * lost).sum()) / total if sure else 0.0


def _sampled(output: torch.Tensor) -> torch.Tensor:
    """Return the parts of an output one after the other, of each as much as is looked at."""
    flat = output.reshape(-1)
    return flat[: len(flat) // LINES * LINES].reshape(LINES, -1)[:, :MOST].reshape(-1)
