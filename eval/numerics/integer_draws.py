"""Kinds of whole numbers on which a candidate is checked: indices, class numbers, counts.

Comes in: one integer input as the problem's own `get_inputs` made it, with what it may index. Goes out: a tensor of the
same form with other numbers. Runs in the reference worker.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rag_kernels.eval.numerics.arranged_inputs import is_structured, lines_of
from rag_kernels.eval.records import IndexBound

MOST_WIDE = 1 << 24  # sums of a thousand exceed 32 bits; products of two stay within 64, and in fp64 exact
FEW_NEAR = 251  # integers near each other: of eight bits, and of no power of two


def repeated(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return an integer input of three of its own values, which come again and again: the least, the greatest, one
    more. Sorted if it was."""
    flat = own.reshape(-1)
    if flat.numel() < 2:
        return own
    one = flat[torch.randint(0, flat.numel(), (1,), generator=generator, device=own.device)]
    few = torch.cat([flat.min().reshape(1), flat.max().reshape(1), one])
    drawn = few[torch.randint(0, 3, flat.shape, generator=generator, device=own.device)]
    drawn = drawn.sort().values if own.dim() == 1 and is_structured(own) else drawn
    return drawn.reshape(own.shape)


def from_the_end(own: torch.Tensor, high: int, generator: torch.Generator) -> torch.Tensor:
    """Return indices of which half mean the same element, counted from the end."""
    at = torch.rand(own.shape, generator=generator, device=own.device) < 0.5
    return torch.where(at & (own >= 0), own - high, own)


def out_of_range(own: torch.Tensor, bound: IndexBound, generator: torch.Generator) -> torch.Tensor:
    """Return indices of which a few, the last one among them, are beyond what they index."""
    at = torch.rand(own.shape, generator=generator, device=own.device) < 1 / 64
    at.reshape(-1)[-1:] = True
    info = torch.iinfo(own.dtype)
    beyond = own.long() % 8 + bound.high
    return torch.where(at, beyond.clamp(info.min, info.max).to(own.dtype), own)


def some_ignored(own: torch.Tensor, mark: int, generator: torch.Generator) -> torch.Tensor:
    """Return class numbers of which some are the mark of those that a loss leaves out."""
    at = torch.rand(own.shape, generator=generator, device=own.device) < 0.3
    return torch.where(at, torch.full_like(own, mark), own)


def next_to_multiples(
    own: torch.Tensor, others: Sequence[torch.Tensor], numbers: Sequence[int], generator: torch.Generator
) -> torch.Tensor:
    """Return whole numbers that are multiples of another input's, as it is spread, or of a number, or one beside.

    Within the range of the problem's own.
    """
    divisors = [torch.tensor(n, device=own.device) for n in numbers if n > 1]
    for other in others:
        try:
            divisors.append(other.long().expand(own.shape))
        except RuntimeError:
            continue
    if not divisors or own.numel() < 2:
        return own
    divisor = divisors[int(torch.randint(0, len(divisors), (), generator=generator, device=own.device))]
    divisor = torch.where(divisor == 0, 1, divisor)
    beside = torch.randint(-1, 2, own.shape, generator=generator, device=own.device)
    wide = own.long()
    return (wide - torch.remainder(wide, divisor) + beside).clamp(int(own.min()), int(own.max())).to(own.dtype)


def at_both_ends(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return an integer input whose parts are at the least of its own values throughout, or at the greatest.

    But for one element of every other line, which is the next one: sums of either sort are odd, and none is of one
    value alone.
    """
    if own.dim() == 0 or own.numel() < 2:
        return own
    parts = (own.shape[0], *(1 for _ in own.shape[1:])) if own.dim() > 1 else (1,)
    side = torch.randint(0, 2, parts, generator=generator, device=own.device)
    made = torch.where(side == 0, own.min(), own.max()).expand(own.shape).clone()
    lines = (lines_of(made) if own.dim() > 1 else made.reshape(1, -1))[::2]
    at = torch.randint(0, lines.shape[1], (len(lines), 1), generator=generator, device=own.device)
    step = 1 if int(own.max()) > int(own.min()) else 0
    lines.scatter_(
        1, at, lines.gather(1, at) + torch.where(lines.gather(1, at) == own.min(), step, -step).to(own.dtype)
    )
    return made


def one_apart(own: torch.Tensor, bound: IndexBound | None, generator: torch.Generator) -> torch.Tensor:
    """Return integers that lie near each other, but for one of each line, far from them where nothing reads them as
    indices. Half of the lines are in order but for it: a look at some places finds neither.
    """
    if own.dim() == 0 or own.numel() < 2:
        return own
    lines = lines_of(own) if own.dim() > 1 else own.reshape(1, -1)
    low, high = int(own.min()), int(own.max())
    near = low + (lines.long() - low) % FEW_NEAR
    first = int(torch.randint(0, 2, (), generator=generator, device=own.device))
    near[first::2] = near[first::2].sort(dim=-1).values
    powers = torch.randint(9, 25, (len(lines), 1), generator=generator, device=own.device)
    info = torch.iinfo(own.dtype)
    far = (1 << powers).clamp(max=info.max) if bound is None else torch.full_like(powers, high)
    if bound is None and info.min < 0:
        side = torch.randint(0, 2, far.shape, generator=generator, device=own.device)
        far = torch.where(side == 0, far, -far).clamp(min=info.min)
    at = torch.randint(0, lines.shape[1], (len(lines), 1), generator=generator, device=own.device)
    return near.scatter(1, at, far).to(own.dtype).reshape(own.shape)


def multiples_of_two(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return an integer input of its own values times a power of two, the same for all inputs of a call."""
    info = torch.iinfo(own.dtype)
    most = max(1, int(own.abs().max())) if own.numel() else 1
    shift = 8 + 4 * (generator.initial_seed() % 4)
    while shift > 0 and most << shift > info.max // 4:
        shift -= 4
    return own << max(0, shift)


def widened(own: torch.Tensor, bound: IndexBound | None, generator: torch.Generator) -> torch.Tensor:
    """Return an integer input of other values: of either sign and beyond 16 bits, or within what they index.

    A quarter are the least or the greatest.
    """
    info = torch.iinfo(own.dtype)
    low, high = max(info.min, -MOST_WIDE), min(info.max, MOST_WIDE)
    if bound is not None:
        signed = bound.wraps and bool((own < 0).any())  # from the end, where the problem counts from there too
        low, high = max(info.min, -bound.high if signed else bound.low), min(info.max, bound.high - 1)
    drawn = torch.randint(low, high + 1, own.shape, generator=generator, device=own.device)
    ends = torch.tensor([low, high], device=own.device)  # where products, and sums of two, are the largest
    end = ends[torch.randint(0, 2, own.shape, generator=generator, device=own.device)]
    drawn = torch.where(torch.rand(own.shape, generator=generator, device=own.device) < 0.25, end, drawn)
    if bound is None and own.numel() > 1:  # half of it of one sign, so that sums grow beyond 32 bits
        half = lines_of(drawn) if own.dim() > 1 else drawn.reshape(-1)
        half[len(half) // 2 :].abs_()
    return drawn.to(own.dtype)


def widest(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return integers of either sign and of any length, up to half of what there is: sums of two are in range.

    A quarter are next to the one before, or differ from it by what the lower half of their bits does not hold.
    """
    info = torch.iinfo(own.dtype)
    shorter = torch.randint(0, info.bits - 2, own.shape, generator=generator, device=own.device)
    drawn = torch.randint(info.max // 4, info.max // 2, own.shape, generator=generator, device=own.device)
    sign = torch.randint(0, 2 if info.min < 0 else 1, own.shape, generator=generator, device=own.device)
    values = ((drawn >> shorter) * (1 - 2 * sign)).reshape(-1)
    apart = torch.tensor([1, -1, 1 << info.bits // 2, -(1 << info.bits // 2)], device=own.device)
    beside = values.roll(1) + apart[torch.randint(0, 4, values.shape, generator=generator, device=own.device)]
    near = torch.rand(values.shape, generator=generator, device=own.device) < 0.25
    values = torch.where(near, beside.clamp(max(info.min // 2, -(info.max // 2)), info.max // 2), values)
    return values.to(own.dtype).reshape(own.shape)
