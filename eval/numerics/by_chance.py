"""Are a few rows of 16 bits farther off than PyTorch's by no more than chance?

Comes in: an output of which rows exceed the limit of errors, what is right, and what PyTorch gives when it rounds
otherwise. Goes out: yes or no. Where one element of a row is larger than all others together, the row's error is one
rounding or two, and PyTorch's own may be none by luck: a kernel as exact as it is three times as far off in some such
rows. So a row whose errors are those of few elements is held to what roundings come to on its own content, as certain
as that number lets it be, and all such rows together more closely. A row of many is held to the limit alone. Runs
beside the reference.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from rag_kernels.eval.numerics.blocks import blocks, one_thread
from rag_kernels.eval.numerics.compare import TINY

FEW = 32.0  # elements, as many as would be if all were as far off: of these chance hardly makes twice of once
SURE = 6.0  # standard deviations of a root of a mean of squares


def by_chance(got: torch.Tensor, right: torch.Tensor, exceeding: torch.Tensor, again: Iterable[torch.Tensor]) -> bool:
    """Return whether chance explains the rows that are `exceeding` (the last one stands for the whole).

    `again` is what PyTorch gives in runs whose rounding is about as good as its own.
    """
    rows = len(exceeding) - 1
    runs, squares = 0, torch.zeros(rows, right.numel() // rows, dtype=torch.float32, device=right.device)
    for other in again:
        runs += 1
        for block in blocks(squares):
            squares[block] += _off(other, right, rows, block).square()
    mine, theirs, fourth = torch.zeros(3, rows + 1, dtype=torch.float64, device=right.device)
    with one_thread():
        for block in blocks(squares):
            usual = squares[block].double() / max(1, runs)
            for total, values in ((mine, _off(got, right, rows, block).square()), (theirs, usual)):
                total[:-1][block[0]] += values.sum(1)
            fourth[:-1][block[0]] += usual.square().sum(1)
    for total in (mine, theirs, fourth):
        total[-1] = total[:-1].sum()
    count, share = theirs.square() / fourth.clamp(min=TINY), mine / theirs.clamp(min=TINY)
    few = (count < FEW) & (theirs > 0)
    if bool((exceeding & ~(few & (share <= _most(count).square()))).any()):
        return False
    return float(share[few].mean().sqrt()) <= float(_most(count[few].sum()))


def _most(count: torch.Tensor) -> torch.Tensor:
    """Return how many times its size the root of the mean square of so many errors may be."""
    return 1 + SURE / (2 * count).sqrt()


def _off(got: torch.Tensor, right: torch.Tensor, rows: int, block: tuple[slice, slice]) -> torch.Tensor:
    return got.reshape(rows, -1)[block].double() - right.reshape(rows, -1)[block].double()
