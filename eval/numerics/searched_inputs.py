"""Inputs that are searched for by what comes of them: results close to zero, or close to an overflow.

Comes in: inputs of a problem that computes element by element, and how its results come of them, in fp64. Goes out:
inputs of the same form. Close to zero an error shows that is small beside everything else, whatever functions the
problem is made of: beside one for logarithms, at multiples of pi for sines, in the tail of an activation. Close to an
overflow what is computed on the way must not have overflowed. Runs in the reference worker.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from rag_kernels.eval.numerics.blocks import one_thread
from rag_kernels.eval.traits.input_kinds import NEXT_TO_ZERO, PEAKS

FRESH = 8  # draws, of which one has to lie on either side of what is wanted
STEPS = 24  # of which each halves what lies between: as many as a number has bits
ENOUGH = 0.05  # of the elements: where fewer are found there are no such results
NEAR = 0.7  # in powers of e, from what was wanted
PEAK = 5e37  # to four times that
FARTHEST = 4  # times
# What is next to zero is above the first. Of a root neighbours are farther from it than the second, of a tail that
# fades they are not; less than the third they are.
TINY, LEAST_BESIDE, MOST_BESIDE = 1e-12, 1e-10, 1e-2
LEAST, MOST = 0.3, 1e3  # inputs whose results are close to zero are not

Values = Sequence[torch.Tensor]
Results = Callable[[Values], torch.Tensor]


def search(kind: str, values: Values, moved: Sequence[int], results: Results, generator: torch.Generator) -> None:
    """Change the `moved` of the values, whose shapes are the results', where others give what is wanted.

    Nothing is changed where too few such are found.
    """
    with one_thread():
        found = results(values)
        wanted = _wanted(kind, found, generator)
        signs = [torch.randn(v.shape, generator=generator, device=v.device).sign() for v in values]
        above, below = [v.clone() for v in values], [v.clone() for v in values]
        sides = [torch.zeros_like(found, dtype=torch.bool) for _ in range(2)]
        for step in range(FRESH + STEPS):
            tried = list(values)
            for i in moved:
                tried[i] = _drawn(kind, signs[i], generator) if step < FRESH else _between(below[i], above[i])
            height = _height(kind, results(tried), wanted)
            for side, place, mask in ((above, 0, height > 0), (below, 1, height <= 0)):
                sides[place] |= mask
                for i in moved:
                    side[i] = torch.where(mask, tried[i], side[i])
        if kind == NEXT_TO_ZERO:
            for i in moved:
                below[i] = _beside(above[i], below[i], generator)
            beside = results(below).abs()
            far = torch.where((beside > LEAST_BESIDE) & (beside < MOST_BESIDE), 0.0, NEAR)
        else:
            far = (results(below).abs() / wanted.abs()).log().abs()
    near = sides[0] & sides[1] & (far < NEAR)
    for i in moved if kind != PEAKS else ():
        near &= (below[i].abs() >= LEAST) & (below[i].abs() <= MOST)
    if float(near.double().mean()) >= ENOUGH:
        places = near.reshape(-1).nonzero().reshape(-1)  # where there is none, what was found elsewhere may do
        others = places[torch.randint(len(places), near.shape, generator=generator, device=near.device)]
        for i in moved:
            values[i].copy_(torch.where(near, below[i], below[i].reshape(-1)[others]))


def _beside(one: torch.Tensor, other: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return numbers as near to a root as numbers come, or a few times as far on the same side."""
    times = torch.randint(0, FARTHEST, one.shape, generator=generator, device=one.device)
    return one + (one - other) * times


def _wanted(kind: str, like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return which results are wanted: all about as small, of either sign, or next to the largest number."""
    sign, size = torch.rand((2, *like.shape), generator=generator, device=like.device, dtype=like.dtype)
    if kind == PEAKS:
        return torch.pow(4, size) * PEAK
    if kind == NEXT_TO_ZERO:
        return torch.where(sign < 0.5, -TINY, TINY).to(like.dtype)
    least = 10 ** (-2 - 2 * torch.rand((), generator=generator, device=like.device, dtype=like.dtype))
    return torch.mul(1 + size, torch.where(sign < 0.5, -least, least))


def _height(kind: str, results: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    if kind == NEXT_TO_ZERO:  # where a range ends, too, beyond which there are no numbers
        return torch.nan_to_num(results, nan=-1.0) - wanted
    return (results.abs() if kind == PEAKS else results) - wanted


def _drawn(kind: str, signs: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw inputs of these signs and of all sizes; half of those for results close to an overflow are small too."""
    size, small = torch.rand((2, *signs.shape), generator=generator, device=signs.device)
    power = size * torch.where(small < 0.5, 2.5, 38.0) if kind == PEAKS else 2.5 * size - 0.5
    return signs * torch.pow(10, power)


def _between(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return what lies between two of one sign by size, since one may be many times the other."""
    return one.sign() * (one.abs().sqrt() * other.abs().sqrt())
