"""Kinds of inputs that are shaped from noise alone: a spike among others, rows that climb, a burst, what is not finite.

Comes in: numbers of a normal distribution. Goes out: a tensor of the same form, of a kind by its name. Knows nothing of
what the problem itself is given (`input_draws.py`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch

from rag_kernels.eval.numerics.arranged_inputs import lines_of
from rag_kernels.eval.numerics.structured_noise import long_chain, long_ways, orthonormal, steep
from rag_kernels.eval.traits.input_kinds import (
    ALOFT,
    BRINK,
    CLIMB,
    CREST,
    DEEP,
    DEEPEST,
    EDGES,
    EVERY,
    FADING,
    FAR_ANGLES,
    FAR_APART,
    HARDLY_JOINED,
    HUGE,
    INFINITE,
    LATE,
    LEVELS,
    LONG_CHAIN,
    LONG_WAYS,
    LOW,
    MASKED,
    MASKED_SPIKES,
    MIXED,
    NON_FINITE,
    ORTHONORMAL,
    OVERFLOW,
    PIVOTS,
    POWERS,
    SIDES,
    SMALL_WHOLE,
    SORTED_ROWS,
    STEEP,
    TAILS,
    TWINS,
)

MIX, SPIKES = ("spikes", "spikes", "ordinary", "low", "few spikes", "large"), 3  # of rows; in one
EDGE = 16  # elements of a tail: the width of a vector
FEW = 8  # elements: too few for any of them to be zero


def _spread(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put every row at a magnitude of its own, from 1e-3 to 1e3.

    The first and the last, which a sniffer reads, below 1.
    """
    rows = lines_of(x)
    power = torch.rand(rows.shape[0], 1, generator=generator, device=x.device) * 6 - 3
    power[0], power[-1] = -power[0].abs(), -power[-1].abs()
    return (rows * 10**power).reshape(x.shape)


def _spikes(x: torch.Tensor, generator: torch.Generator, every: int = 200, least: int = 30) -> torch.Tensor:
    """Let one element in `every`, or `least` of them, lie between 100 and 200, of either sign: exp overflows."""
    flat = x.reshape(-1).clone()
    count = max(min(least, flat.numel()), flat.numel() // every)
    at = torch.randint(0, flat.numel(), (count,), generator=generator, device=x.device)
    size = 100 + 100 * torch.rand(count, generator=generator, device=x.device)
    flat[at] = size * torch.randn(count, generator=generator, device=x.device).sign()
    return flat.reshape(x.shape)


def _mixed(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make the rows of kinds in turn: three spikes that are alike, another row of such of either sign, ordinary, low,
    small with a few spikes of either sign, large. Where there are few rows they begin with spikes.

    The three lie anywhere, or in half of these rows at the end, where a tail is read.
    """
    rows = lines_of(x).clone()
    count, n = rows.shape

    def chosen(low: int, high: int, *sizes: int) -> torch.Tensor:
        return torch.randint(low, high, sizes, generator=generator, device=x.device)

    begin = int(chosen(0, len(MIX), 1)) if count >= len(MIX) else 0
    kinds = (torch.arange(count, device=x.device) + begin) % len(MIX)
    few = kinds == MIX.index("few spikes")
    places = chosen(0, n, int(few.sum()), 1 + n // 500)
    rows[few] = (0.1 * rows[few]).scatter(1, places, 150 * rows[few].gather(1, places).sign())
    low, large = kinds == MIX.index("low"), kinds == MIX.index("large")
    rows[low] = 4 * rows[low] - 100
    rows[large] = 100 * rows[large]
    spiked = kinds < MIX.index("ordinary")
    spikes = int(spiked.sum())
    least = torch.where(chosen(0, 2, spikes, 1) == 1, max(0, n - EDGE), 0)
    at = least + (torch.rand(spikes, SPIKES, generator=generator, device=x.device) * (n - least)).long()
    level = 90 + 110 * torch.rand(spikes, 1, generator=generator, device=x.device)
    apart = 3 * torch.rand(spikes, SPIKES, generator=generator, device=x.device)
    side = torch.where((chosen(0, 2, spikes, 1) == 0) & (kinds[spiked] > 0).unsqueeze(1), -1.0, 1.0)
    rows[spiked] = rows[spiked].scatter(1, at.clamp(max=n - 1), side * (level - apart))
    return rows.reshape(x.shape)


def _large(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put every other row at thousands, and the others at magnitudes of their own from 1e4 to 1e6."""
    rows = lines_of(x)
    power = 3 + (1 + 2 * torch.rand(rows.shape[0], 1, generator=generator, device=x.device))
    power[torch.randint(0, 2, (), generator=generator, device=x.device) :: 2] = 3
    return (rows * 10**power).reshape(x.shape)


def _deep(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put every row far below zero, at a place of its own from -3e4 to -1e9; further off x * c - top overflows."""
    rows = lines_of(x)
    power = 4.5 + 4.5 * torch.rand(rows.shape[0], 1, generator=generator, device=x.device)
    return (-(1 + 0.1 * rows.abs()) * 10**power).reshape(x.shape)


def _deepest(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put every row as far below zero as there are numbers, at a place of its own from -1e9 to -1e38."""
    rows = lines_of(x)
    power = 9 + 29 * torch.rand(rows.shape[0], 1, generator=generator, device=x.device)
    return (-(1 + 0.1 * rows.abs()) * 10**power).reshape(x.shape)


def _masked(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make a third of the elements the least number that there is, and every other row throughout."""
    least = torch.full_like(x, torch.finfo(x.dtype).min)
    at = torch.rand(x.shape, generator=generator, device=x.device) < 0.33
    lines_of(at)[::2] = True
    return torch.where(at, least, x)


def _masked_spikes(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put a third of the elements where masks put them, a row at -1e4, -1e9 or between, and two that are almost alike
    far above the rest of each row.
    """
    rows = lines_of(x)
    drawn = torch.rand(4, len(rows), 2, generator=generator, device=x.device)
    level = -(10 ** (4 + 5 * (3 * drawn[0, :, :1]).floor() / 2))
    rows = torch.where(torch.rand(rows.shape, generator=generator, device=x.device) < 0.33, level, rows)
    two = (drawn[1] * rows.shape[1]).long().clamp(max=rows.shape[1] - 1)
    return rows.scatter(1, two, 90 + 110 * drawn[2, :, :1] + 2 * drawn[3]).reshape(x.shape)


def _crest(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put one element of each row, a zero, above the others: what these add to it are the last digits that count.

    By 8 to 24, or so far that all of them add e^-5 to e^-10: the logarithm of their sum is as small.
    """
    rows = 0.1 * lines_of(x)
    drawn = torch.rand(rows.shape[0], 1, generator=generator, device=x.device)
    above = 8 + 16 * drawn
    above[::2] = math.log(rows.shape[1]) + 5 + 5 * drawn[::2]
    at = torch.randint(0, rows.shape[1], (rows.shape[0], 1), generator=generator, device=x.device)
    return (rows - above).scatter(1, at, 0.0).reshape(x.shape)


def _aloft(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put one element of each row 15 to 60 above the others, at -80 to 80, or more often below zero.

    A guard by the sum of exponentials sees the one, and not that the others are nothing without it taken off.
    """
    rows = 0.3 * lines_of(x)
    drawn = torch.rand(3, rows.shape[0], 1, generator=generator, device=x.device)
    top = 80 * torch.where(drawn[0] < 0.6, -drawn[1], 2 * drawn[1] - 1)
    at = torch.randint(0, rows.shape[1], (rows.shape[0], 1), generator=generator, device=x.device)
    return (rows + top - 15 - 45 * drawn[2]).scatter(1, at, top).reshape(x.shape)


def _levels(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shift each row by 3 to 300 times its spread, to either side."""
    rows = lines_of(x)
    drawn = torch.rand(2, rows.shape[0], 1, generator=generator, device=x.device)
    side = torch.where(drawn[0] < 0.5, -1.0, 1.0)
    return (rows + side * 10 ** (0.5 + 2 * drawn[1])).reshape(x.shape)


def _tails(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put each line at two to nine, of one sign or, every other line, of the other."""
    lines = 2 + 7 * torch.rand(lines_of(x).shape, generator=generator, device=x.device)
    lines[torch.randint(0, 2, (), generator=generator, device=x.device) :: 2] *= -1
    return lines.reshape(x.shape)


def _climb(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Let every row rise once by 80 to 88.5, at a place of its own, up or, in every other row, down.

    Many are almost as large then: an exponential beside the first ones is finite, and a sum of some is not.
    """
    rows = lines_of(x)
    drawn = torch.rand(2, rows.shape[0], 1, generator=generator, device=x.device)
    places = torch.arange(rows.shape[1], device=x.device).expand(rows.shape).clone()
    places[1::2] = places[1::2].flip(-1)
    climbed = places >= (drawn[0] * rows.shape[1]).clamp(max=rows.shape[1] - 1)
    return (1e-2 * rows + climbed * (80 + 8.5 * drawn[1])).reshape(x.shape)


def powers_of_two(
    own: torch.Tensor, generator: torch.Generator, *, throughout: bool = False, scales: Sequence[float] = ()
) -> torch.Tensor:
    """Return a half to four, of the own signs, in every other line one throughout; or one in all places.

    With `scales`, which are powers of two, each is from an eighth to four and divided or multiplied by one of these.
    """
    if not own.is_floating_point() or own.numel() == 0:
        return own
    power = torch.randint(-1 if throughout else 0, 3, own.shape, generator=generator, device=own.device)
    value = torch.where(own < 0, -1.0, 1.0) * 2.0**power
    if throughout:
        return value.reshape(-1)[0].expand(own.shape).to(own.dtype)
    if value.dim():
        lines = lines_of(value)
        lines[::2] = lines[::2, :1].clone()
    if scales:
        times = torch.tensor([f * s for f in (0.125, 1.0) for t in (1.0, *scales) for s in (t, 1 / t)])
        chosen = torch.randint(0, len(times), own.shape, generator=generator, device=own.device)
        value = value * times.to(own.device)[chosen]
    return value.to(own.dtype)


def far_angles(own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return one to four times a power of two each, of the own signs."""
    if not own.is_floating_point() or own.numel() == 0:
        return own
    most = 12 if own.dtype == torch.float16 else 61
    power = torch.randint(0, most, own.shape, generator=generator, device=own.device)
    few = torch.randint(1, 5, own.shape, generator=generator, device=own.device)
    return (torch.where(own < 0, -1.0, 1.0) * few * 2.0**power).to(own.dtype)


def clusters(x: torch.Tensor, generator: torch.Generator, *, several: bool) -> torch.Tensor:
    """Put every row close to one of four that the inputs of a call have in common, of others than the first to one.

    What lies close together is far from the middle of all then.
    """
    rows = lines_of(x)
    common = torch.Generator(x.device).manual_seed(generator.initial_seed())
    centres = 4 * torch.randn(4, rows.shape[1], generator=common, device=x.device)
    nearest = torch.randint(0, 4 if several else 1, (rows.shape[0],), generator=generator, device=x.device)
    return (centres[nearest] + 0.02 * rows).reshape(x.shape)


def _sides(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put every place of a dimension on one of two sides, the same for dimensions as long in all inputs of a call:
    elements that are on one side in both of the last two are large, and others as far below zero.
    """
    return 3 * _signs_of_sides(x, generator) + 0.3 * x


def _hardly_joined(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put every place of a dimension on one of two sides, as above: elements on one side are about one, and others next
    to nothing, about as much of it throughout.
    """
    power = -7 - 2 * torch.rand((), generator=generator, device=x.device)
    size = 0.5 + 0.3 * x.abs()
    return torch.where(_signs_of_sides(x, generator) > 0, size, size * 10**power)


def _signs_of_sides(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    signs = torch.ones((), device=x.device)
    for dim in range(max(0, x.dim() - 2), x.dim()):
        common = torch.Generator(x.device).manual_seed(generator.initial_seed() + x.shape[dim])
        side = torch.randint(0, 2, x.shape[dim : dim + 1], generator=common, device=x.device)
        signs = signs * (2.0 * side - 1).reshape(-1, *(1 for _ in x.shape[dim + 1 :]))
    return signs


def _every(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Raise every so many elements of a row, from 2 to 256, by 6; or as many beside each other."""
    rows = lines_of(x)
    count, n = rows.shape
    drawn = torch.rand(3, count, 1, generator=generator, device=x.device)
    apart = (2 ** (1 + (8 * drawn[0]).floor())).long()
    first = (drawn[1] * apart).long()
    places = torch.arange(n, device=x.device)
    among = places % apart == first
    beside = torch.div(places * apart, n, rounding_mode="floor") == first
    return (rows + 6 * torch.where(drawn[2] < 0.7, among, beside)).reshape(x.shape)


def _late(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make matrices a half on their diagonals but for one place, the same in all inputs of a call, which is one; what
    has one dimension has next to nothing there, and ones elsewhere.
    """
    at = generator.initial_seed() % 2
    if x.dim() < 2:
        start = torch.ones_like(x)
        start[at : at + 1] = 10 ** (-3 - 2 * torch.rand((), generator=generator, device=x.device))
        return start
    late = 0.5 * torch.eye(*x.shape[-2:], device=x.device)
    late[at : at + 1, at : at + 1] *= 2
    return late.expand(x.shape).clone()


def _pivots(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make elements of a row large that a sample would take: the first, the last and those that part it evenly.

    A quarter of the rows have seven such, another one three that are alike and lie evenly about the middle, or at its
    quarters, as what takes a median reads; of the others each has one to three, since few of many decide a mean.
    """
    rows = lines_of(x).clone()
    n = rows.shape[1]
    places = [*(n * i // 16 for i in range(16)), n // 3, 2 * n // 3, n // 5, 4 * n // 5, (n - 1) // 2, n - 1]
    sampled = torch.tensor(sorted(set(places)), device=x.device)
    size = 300 * (1 + torch.rand(rows.shape[0], len(sampled), generator=generator, device=x.device))
    usual = sorted({0, n // 4, n // 3, n // 2, 2 * n // 3, 3 * n // 4, n - 1})
    rows[1::2, usual] = size[1::2, : len(usual)]
    few = rows[::2]
    chances = torch.rand(len(few), len(sampled), generator=generator, device=x.device)
    wanted = torch.randint(1, 4, (len(few), 1), generator=generator, device=x.device)
    taken = chances.argsort(1).argsort(1) < wanted
    few[:, sampled] = torch.where(taken, size[::2], few[:, sampled])
    alike = rows[3::4]
    eighth = torch.randint(1, 8, (len(alike), 1), generator=generator, device=x.device)
    eighth[::2] = 4
    near = torch.cat([n * eighth // 16, torch.full_like(eighth, n // 2), n * (16 - eighth) // 16], 1)
    level = size[3::4, :1] * (1 + 1e-3 * torch.rand(near.shape, generator=generator, device=x.device))
    rows[3::4] = (0.01 * x.reshape(rows.shape)[3::4]).scatter(1, near, level)
    return rows.reshape(x.shape)


def _twins(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make every other row the one before it, but for one element that counts: a sample or a beginning shows none."""
    rows = lines_of(x).clone()
    few = rows[1::2]
    at = torch.randint(0, rows.shape[1], (len(few), 1), generator=generator, device=x.device)
    rows[1::2] = rows[: 2 * len(few) : 2].scatter_add(1, at, 3 + few.gather(1, at).abs())
    return rows.reshape(x.shape)


def burst(x: torch.Tensor, generator: torch.Generator, loud_as: float) -> torch.Tensor:
    """Make of each part along the first dimension all faint but one line across, in the middle third of its last
    dimension, or of every other part in that of the one before, where there is one: what follows sees it, or does not.
    Of a matrix one whole line is loud, too, for sums along the first dimension.
    """
    parts = 1e-3 * (x if x.dim() > 1 else x.reshape(1, -1))
    loud = torch.zeros(parts.shape, dtype=torch.bool, device=x.device)
    turn = torch.arange(len(parts), device=x.device) + torch.randint(2, (1,), generator=generator, device=x.device)
    for which, dim in ((0, -1), (1, -2)) if parts.dim() > 2 else ((None, -1),):
        size = parts.shape[dim]
        place = (size + torch.randint(max(1, size), (len(parts),), generator=generator, device=x.device)) // 3
        shape = [1] * parts.dim()
        shape[dim] = size
        at = torch.arange(size, device=x.device).reshape(shape)
        chosen = turn % 2 == which if which is not None else turn >= 0
        across = (len(parts), *(1 for _ in shape[1:]))
        loud |= (at == place.reshape(across)) & chosen.reshape(across)
    if x.dim() == 2:
        loud[int(len(parts) + torch.randint(len(parts), (1,), generator=generator, device=x.device)) // 3] = True
    return torch.where(loud, loud_as * (parts.sign() + 1e3 * parts), parts).reshape(x.shape)


def bad_for_pivots(n: int) -> list[int]:
    """Return an order of so many elements, by their ranks, in which the median of the first, the middle and the last
    one parts off two elements at a time (Musser, 1997).
    """
    half = (n - 1) // 2
    first = [i if i % 2 else half + i - 1 for i in range(1, half + 1)]
    sizes = torch.tensor([*first, *range(2, 2 * half + 1, 2), *[2 * n] * (n - 2 * half)])
    ranks = torch.empty(n, dtype=torch.int64)
    ranks[sizes.argsort(stable=True)] = torch.arange(n)
    return ranks.tolist()


def _sorted_rows(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Let every other row ascend, and the others descend; half of either but for two neighbours, which no look at some
    places finds. Every third one has bad pivots at its ends and its middle, again and again.
    """
    rows = lines_of(x).sort(dim=-1).values
    count, n = rows.shape
    rows[1::2] = rows[1::2].flip(-1)
    if n > 1:
        first = torch.randint(0, 4, (), generator=generator, device=x.device)
        nearly = ((torch.arange(count, device=x.device) + first) // 2 % 2 == 1).unsqueeze(1)
        at = torch.randint(0, n - 1, (count, 1), generator=generator, device=x.device)
        pair = torch.cat([at, at + 1], 1)
        exchanged = rows.scatter(1, pair, rows.gather(1, pair).flip(1))
        rows = torch.where(nearly, exchanged, rows)
    rows[2::3] = rows[2::3].sort(dim=-1).values[:, bad_for_pivots(n)]
    return rows.reshape(x.shape)


def _overflow(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make one element in twenty so large that sums and products of such exceed half precision."""
    power = 2.5 + torch.rand(x.shape, generator=generator, device=x.device)
    few = torch.rand(x.shape, generator=generator, device=x.device) < 0.05
    return torch.where(few, x.sign() * 10**power, x)


def _brink(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw numbers whose exponentials are next to an overflow, or to nothing."""
    return x.sign() * (86 + 3.3 * torch.rand(x.shape, generator=generator, device=x.device))


def _huge(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw numbers of either sign from 1e4 to 1e30."""
    return x.sign() * 10 ** (4 + 26 * torch.rand(x.shape, generator=generator, device=x.device))


def _constant_rows(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Give every other row one value throughout, every fourth nearly so."""
    rows = lines_of(x).clone()
    rows[::2] = rows[::2, :1].round()
    rows[::4] += 1e-3 * lines_of(x)[::4]
    return rows.reshape(x.shape)


def _one_spike(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make everything small but one element, which says which way a maximum, or an overflow, is handled."""
    flat = 1e-2 * x.reshape(-1)
    flat[torch.randint(0, flat.numel(), (1,), generator=generator, device=x.device)] = 150.0
    return flat.reshape(x.shape)


def _edges(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make everything faint but the last elements and the first: a tail that is left out shows in a sum of all."""
    flat = 1e-4 * x.reshape(-1)
    count = max(1, min(EDGE, flat.numel() // 4))
    for at in (slice(0, 1), slice(flat.numel() - count, flat.numel())):
        size = 1 + torch.rand(flat[at].shape, generator=generator, device=x.device)
        flat[at] = size * x.reshape(-1)[at].sign()
    return flat.reshape(x.shape)


def _sparse(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw values of which nine in ten are zero."""
    return x * (torch.rand(x.shape, generator=generator, device=x.device) < 0.1)


def _non_finite(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make a few elements NaN or infinite, of either sign, and a quarter zero: zero times infinity is no zero."""
    flat = with_zeros(x, generator).reshape(-1).clone()
    for value in (math.nan, math.inf, -math.inf):
        at = torch.randint(0, flat.numel(), (1 + flat.numel() // 5000,), generator=generator, device=x.device)
        flat[at] = value
    return flat.reshape(x.shape)


def other_nans(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make a few elements NaNs of other bits: of either sign, with one or all of a payload, as processors make them."""
    words = {2: torch.int16, 4: torch.int32}.get(x.element_size())
    if words is None:
        return x
    raw = x.contiguous().view(words).reshape(-1).clone()
    top = torch.iinfo(words)
    for bits in (-1, top.max, int(torch.tensor(-math.nan, dtype=x.dtype).view(words)) | top.min):
        at = torch.randint(0, raw.numel(), (1 + raw.numel() // 5000,), generator=generator, device=x.device)
        raw[at] = bits
    return raw.view(x.dtype).reshape(x.shape)


def with_zeros(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return floats of which a quarter are zero."""
    if not x.is_floating_point() or x.numel() < FEW:
        return x
    return torch.where(torch.rand(x.shape, generator=generator, device=x.device) < 0.25, torch.zeros_like(x), x)


SHAPED: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "normal": lambda x, g: x,
    "spread": _spread,
    "shifted": lambda x, g: x + 3.0,
    "far": lambda x, g: x + 100.0,
    "spikes": _spikes,
    "rare spikes": lambda x, g: _spikes(0.1 * x, g, every=2000, least=12),  # a sample of the others shows none
    "constant rows": _constant_rows,
    "ties": lambda x, g: (x * 2).round(),
    "large": _large,
    "tiny": lambda x, g: x * 1e-40,
    "small": lambda x, g: x * 1e-2,
    "negative": lambda x, g: -x.abs(),
    "positive": lambda x, g: x.abs(),
    "one spike": _one_spike,
    EDGES: _edges,
    LOW: lambda x, g: 4 * x - 20,
    TAILS: _tails,
    DEEP: _deep,
    DEEPEST: _deepest,
    MASKED: _masked,
    MASKED_SPIKES: _masked_spikes,
    CREST: _crest,
    ALOFT: _aloft,
    LEVELS: _levels,
    CLIMB: _climb,
    PIVOTS: _pivots,
    EVERY: _every,
    STEEP: steep,
    **{kind: partial(orthonormal, little=little) for kind, little in ORTHONORMAL.items()},
    LONG_WAYS: long_ways,
    LONG_CHAIN: long_chain,
    HARDLY_JOINED: _hardly_joined,
    LATE: _late,
    SIDES: _sides,
    MIXED: _mixed,
    SORTED_ROWS: _sorted_rows,
    TWINS: _twins,
    OVERFLOW: _overflow,
    BRINK: _brink,
    HUGE: _huge,
    FADING: lambda x, g: x * 1e-20,
    SMALL_WHOLE: lambda x, g: x.sign() * (2 * x.abs()).ceil().clamp(1, 4),
    POWERS: powers_of_two,
    FAR_ANGLES: far_angles,
    FAR_APART: lambda x, g: x,
    "sparse": _sparse,
    NON_FINITE: _non_finite,
    INFINITE: lambda x, g: torch.full_like(x, math.inf),
}
