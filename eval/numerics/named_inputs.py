"""Inputs in which numbers that a candidate names are what a cheat could be triggered by.

Comes in: a tensor as the problem has it, and numbers. Goes out: one of the same form whose lines have something of such
a number: elements, differences and quotients of neighbours, sums, extremes, how many elements are alike, at which place
one stands out, which bits it has. Each line has one such thing, or two. Runs in the reference worker, which sees
numbers of a candidate and nothing else of it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from rag_kernels.eval.numerics.blocks import one_thread
from rag_kernels.eval.traits.named_numbers import MODERATE

Lines = torch.Tensor  # of two dimensions
PIECES = (32, 64, 256)  # elements of a piece, of tensors that are one line
ABOUT = 100.0  # times
MOST_ELEMENTS = 1 << 17  # of a tensor that are others
FEW = 12  # of the first numbers, two of which come together
TABLE, MOST_WHOLE = 1024, 1 << 40
NEAR = (0.0, 1e-3, -1e-3, 0.05, -0.05)  # relative, of what is summed
MANTISSA = {torch.float64: 52, torch.float32: 23, torch.float16: 10, torch.bfloat16: 7}
BITS_OF = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}


class Numbers:
    """Numbers to choose from by a generator: floats, and whole ones. The first, which a text names, come more often."""

    def __init__(self, reals: Sequence[float], wholes: Sequence[int], generator: torch.Generator) -> None:
        self.generator, self.device = generator, generator.device
        values = torch.tensor(reals, dtype=torch.float64, device=self.device)
        one, other = (values[:FEW][self.below(len(values[:FEW]), 4, TABLE // 16)] for _ in range(2))
        both = (one[0] + other[0], one[1] - other[1], one[2] * other[2], one[3] / other[3])
        of_two = torch.cat(both)
        of_two = of_two[(of_two != 0) & (of_two.abs() <= values.max())]  # where exponentials are finite, as of one
        self._reals = torch.cat([values[self._first(len(values), TABLE)], of_two])
        self.wholes = torch.tensor([w for w in wholes if w < MOST_WHOLE], dtype=torch.int64, device=self.device)

    def drawn(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator, device=self.device)

    def below(self, most: int, *shape: int) -> torch.Tensor:
        return torch.randint(0, max(1, most), shape, generator=self.generator, device=self.device)

    def of_either_sign(self, *shape: int) -> torch.Tensor:
        return torch.where(self.below(2, *shape) == 0, -1.0, 1.0)

    def _first(self, count: int, *shape: int) -> torch.Tensor:
        """Return numbers below `count`, half of them in its first quarter."""
        return (count * self.drawn(*shape) ** 2).long().clamp(max=count - 1)

    def real(self, *shape: int) -> torch.Tensor:
        """Return floats of these, or sums, differences, products and quotients of two of the first."""
        return self._reals[self.below(len(self._reals), *shape)]

    def whole(self, most: int, *shape: int) -> torch.Tensor:
        """Return whole numbers of these up to `most`, some one less or one more; any where there is none."""
        some = self.wholes[self.wholes <= most]
        if not len(some):
            return 1 + self.below(most, *shape)
        aside = self.below(8, *shape)
        values = some[self._first(len(some), *shape)]
        return (values + (aside == 0).long() - (aside == 1).long()).clamp(0, most)


def with_numbers(
    own: torch.Tensor, reals: Sequence[float], wholes: Sequence[int], generator: torch.Generator, *, far: bool
) -> torch.Tensor:
    """Return floats whose lines have something of these numbers; of `far` ones none is left out for its size."""
    if not own.is_floating_point() or own.numel() == 0 or own.dtype not in BITS_OF:
        return own
    most = 0.2 * min(torch.finfo(own.dtype).max, 1e30)
    some = _far(reals, most, generator) if far else [r for r in reals if MODERATE[0] <= r <= MODERATE[1]]
    numbers = Numbers(some or [1.0], wholes, generator)
    if own.numel() == 1:
        sign = -1.0 if float(own) < 0 else 1.0
        return (sign * numbers.real(1)).to(own.dtype).reshape(own.shape)
    lines, back = _lines(own, numbers)
    chosen = _some(len(lines), lines.shape[1], numbers)
    with one_thread():
        lines[chosen] = _with_ways(lines[chosen], numbers, most if far else MODERATE[1])
    return back(lines)


def _far(reals: Sequence[float], most: float, generator: torch.Generator) -> list[float]:
    """Return numbers that are about as large as one of them which is far from one: beside others they count nothing."""
    far = [r for r in reals if r <= most and not MODERATE[0] <= r <= MODERATE[1]]
    if not far:
        return []
    about = far[int(len(far) * float(torch.rand((), generator=generator, device=generator.device)) ** 2)]
    return [r for r in reals if about / ABOUT <= r <= min(about * ABOUT, most)]


def _some(count: int, length: int, numbers: Numbers) -> torch.Tensor:
    """Return which lines are others: all, or as many as are worth it."""
    order = torch.randperm(count, generator=numbers.generator, device=numbers.generator.device)
    return order[: max(1, MOST_ELEMENTS // max(1, length))]


def _with_ways(lines: Lines, numbers: Numbers, bound: float) -> Lines:
    """Return lines, half of them drawn anew, each of which has something of numbers in one way, or in two."""
    beside = torch.randn(lines.shape, generator=numbers.generator, device=lines.device).to(lines.dtype)
    lines = torch.where(numbers.drawn(len(lines), 1) < 0.5, lines, beside)
    for share in (1.0, 0.4):
        which = torch.where(numbers.drawn(len(lines)) < share, numbers.below(len(_WAYS), len(lines)), -1)
        for number, way in enumerate(_WAYS):
            at = (which == number).nonzero().reshape(-1)
            if len(at):
                changed = way(lines[at], numbers).nan_to_num(0.0)
                lines[at] = changed.clamp(-bound, bound).to(lines.dtype)
    return lines


def with_whole_numbers(
    own: torch.Tensor, wholes: Sequence[int], low: int, high: int, generator: torch.Generator
) -> torch.Tensor:
    """Return whole numbers, or truth values, from `low` to below `high`: many are these, or so many are alike."""
    if own.numel() < 2 or high <= low:
        return own
    numbers = Numbers([1.0], wholes, generator)
    lines, back = _lines(own, numbers)
    chosen = _some(len(lines), lines.shape[1], numbers)
    with one_thread():
        changed = _whole_lines(lines[chosen].long(), numbers, low, high)
        lines[chosen] = changed.to(own.dtype)
    return back(lines)


def _whole_lines(lines: Lines, numbers: Numbers, low: int, high: int) -> Lines:
    named = numbers.wholes.tolist()
    wholes = (*named, *(-w for w in named))
    some = torch.tensor([w for w in wholes if low <= w < high] or [low], device=lines.device)
    chosen = some[numbers.below(len(some), *lines.shape)]
    part = numbers.drawn(len(lines), 1) < 0.5
    lines = torch.where(part & (numbers.drawn(*lines.shape) < 0.5), chosen, lines)
    count = numbers.whole(lines.shape[1], len(lines), 1)
    first = torch.where(numbers.below(2, len(lines), 1) == 0, lines[:, :1], chosen[:, :1])
    alike = _so_many(lines, count, numbers) & (numbers.drawn(len(lines), 1) < 0.4)
    return torch.where(alike, first, lines)


def put_beside_numbers(values: Sequence[torch.Tensor], reals: Sequence[float], generator: torch.Generator) -> None:
    """Let parts of tensors of one form be a number times another's, or so much more or less, or both be numbers; each
    in one part of nine, where it is finite.
    """
    numbers = Numbers([r for r in reals if MODERATE[0] <= r <= MODERATE[1]] or [1.0], (), generator)
    forms: dict[tuple[torch.Size, torch.dtype], torch.Tensor] = {}
    for value in values:
        like = forms.setdefault((value.shape, value.dtype), value)
        if like is value or value.dim() == 0 or not value.numel():
            continue
        parts = (value.shape[0], *(1 for _ in value.shape[1:]))
        by, kind = numbers.real(*parts).to(value.dtype), numbers.below(9, *parts)
        some = (kind == 3) & (numbers.drawn(*value.shape) < 0.5)
        like.copy_(torch.where(some, numbers.real(*parts).to(value.dtype), like))
        for number, made in enumerate((like * by, like + by, like - by, by.expand(value.shape))):
            at = some if number == 3 else (kind == number) & torch.isfinite(made)
            value.copy_(torch.where(at, made, value))


def _lines(own: torch.Tensor, numbers: Numbers) -> tuple[Lines, Callable[[Lines], torch.Tensor]]:
    """Return a copy of a tensor as lines along one of its dimensions, mostly the last, and what puts them back."""
    if own.dim() < 2:
        piece = next((p for p in PIECES if own.numel() % p == 0 and int(numbers.below(2)) == 0), own.numel())
        return own.reshape(-1, piece).clone(), lambda lines: lines.reshape(own.shape)
    dim = own.dim() - 1 if float(numbers.drawn()) < 0.7 else int(numbers.below(own.dim()))
    turned = own.movedim(dim, -1)
    return turned.reshape(-1, own.shape[dim]).clone(), lambda lines: lines.reshape(turned.shape).movedim(-1, dim)


def _at(lines: Lines, numbers: Numbers) -> Lines:
    """Put half of the elements, or one in eight, on numbers and right beside them: on several, or on one in a line."""
    several = torch.where(numbers.below(2, len(lines), 1) == 0, numbers.real(*lines.shape), numbers.real(len(lines), 1))
    exact = (several * numbers.of_either_sign(*lines.shape)).to(lines.dtype)
    above, below = (torch.nextafter(exact, torch.full_like(exact, to)) for to in (math.inf, -math.inf))
    which = numbers.below(6, *lines.shape)
    near = torch.where(which == 0, above, torch.where(which == 1, below, exact))
    share = torch.where(numbers.below(2, len(lines), 1) == 0, 0.5, 0.125)
    return torch.where(numbers.drawn(*lines.shape) < share, near, lines)


def _one_at(lines: Lines, numbers: Numbers) -> Lines:
    """Put one element, the first, the last or another one, on a number."""
    n = lines.shape[1]
    at = torch.tensor([0, n - 1, int(numbers.below(n))], device=lines.device)[numbers.below(3, len(lines), 1)]
    exact = numbers.real(len(lines), 1) * numbers.of_either_sign(len(lines), 1)
    return lines.scatter(1, at, exact.to(lines.dtype))


def _so_many(lines: Lines, count: torch.Tensor, numbers: Numbers) -> torch.Tensor:
    """Return so many places of each line: the first ones, the last ones, or any."""
    n = lines.shape[1]
    places = torch.arange(n, device=lines.device).expand(lines.shape)
    how = numbers.below(3, len(lines), 1)
    any_order = numbers.drawn(*lines.shape).argsort(1)
    return torch.where(how == 0, places, torch.where(how == 1, n - 1 - places, any_order)) < count


def _counted(lines: Lines, numbers: Numbers) -> Lines:
    """Make as many elements as a number says zero, negative, positive, above a number, or alike; the others are not."""
    count = numbers.whole(lines.shape[1], len(lines), 1)
    marked, size = _so_many(lines, count, numbers), lines.abs() + 0.1
    real = numbers.real(len(lines), 1).to(lines.dtype)
    kind = numbers.below(5, len(lines), 1)
    inside = [torch.zeros_like(lines), -size, size, real + size, real.expand(lines.shape)]
    outside = [size, size, -size, real - size, lines]
    return torch.where(marked, _chosen(inside, kind), _chosen(outside, kind))


def _chosen(ways: Sequence[torch.Tensor], kind: torch.Tensor) -> torch.Tensor:
    """Return of each line what it has in the way that is its kind."""
    return torch.stack(list(ways)).gather(0, kind.expand(ways[0].shape).unsqueeze(0))[0]


def _distant(lines: Lines, numbers: Numbers) -> Lines:
    """Make elements so many places apart equal: all of them, or two."""
    n = lines.shape[1]
    apart = numbers.whole(n - 1, len(lines), 1).clamp(min=1)
    places = torch.arange(n, device=lines.device).expand(lines.shape)
    one = (numbers.drawn(len(lines), 1) * (n - apart)).long()
    again = torch.where((numbers.below(2, len(lines), 1) == 0) | (places == one + apart), places - apart, places)
    again = torch.where(again < 0, places, again)
    cyclic = lines.gather(1, torch.remainder(places, apart))
    return torch.where(numbers.below(2, len(lines), 1) == 0, lines.gather(1, again), cyclic)


def _raised(lines: Lines, numbers: Numbers) -> Lines:
    """Raise, or lower, every so many elements of a line as a number says."""
    apart = numbers.whole(lines.shape[1], len(lines), 1).clamp(min=2)
    first = (numbers.drawn(len(lines), 1) * apart).long()
    at = torch.arange(lines.shape[1], device=lines.device) % apart == first
    return lines + 6 * numbers.of_either_sign(len(lines), 1).to(lines.dtype) * at


def _placed(lines: Lines, numbers: Numbers) -> Lines:
    """Let the element at a place that a number tells, from either end, be the largest, the least, zero or a number."""
    n = lines.shape[1]
    at = numbers.whole(n, len(lines), 1)
    at = torch.where(numbers.below(2, len(lines), 1) == 0, at, n - 1 - at).clamp(0, n - 1)
    top, least = lines.amax(1, keepdim=True), lines.amin(1, keepdim=True)
    real = numbers.real(len(lines), 1).to(lines.dtype)
    kind = numbers.below(6, len(lines), 1)
    return lines.scatter(1, at, _chosen([top + 1, least - 1, torch.zeros_like(top), real, real, -real], kind))


def _apart(lines: Lines, numbers: Numbers) -> Lines:
    """Let neighbours in pairs be a number apart, or so many times as large."""
    n = lines.shape[1] // 2 * 2
    pairs = lines[:, :n].reshape(len(lines), -1, 2).clone()
    by = (numbers.real(*pairs.shape[:2]) * numbers.of_either_sign(*pairs.shape[:2])).to(lines.dtype)
    other = torch.where(numbers.below(2, len(lines), 1) == 0, pairs[..., 0] + by, pairs[..., 0] * by)
    pairs[..., 1] = torch.where(numbers.drawn(*other.shape) < 0.5, other, pairs[..., 1])
    return torch.cat([pairs.reshape(len(lines), n), lines[:, n:]], 1)


def _as_a_whole(lines: Lines, numbers: Numbers) -> Lines:
    """Let the largest, the least, the range, the sum, the mean, the sum of squares, their root or the largest size of a
    line be a number, or nearly.
    """
    wide = lines.double()
    near = torch.tensor(NEAR, dtype=torch.float64, device=lines.device)[numbers.below(len(NEAR), len(lines), 1)]
    real = numbers.real(len(lines), 1) * (1 + near)
    signed = real * numbers.of_either_sign(len(lines), 1)
    n, mean = lines.shape[1], wide.mean(1, keepdim=True)
    top, least, size = wide.amax(1, keepdim=True), wide.amin(1, keepdim=True), wide.norm(dim=1, keepdim=True)
    ways = [
        wide + (signed - top),
        wide + (signed - least),
        wide * real.abs() / (top - least),
        wide + (signed - n * mean) / n,
        wide + (signed - mean),
        wide * real.abs().sqrt() / size,
        wide * real.abs() / size,
        wide * real.abs() / torch.maximum(top, -least),
    ]
    return _chosen(ways, numbers.below(len(ways), len(lines), 1)).to(lines.dtype)


def _exact_sum(lines: Lines, numbers: Numbers) -> Lines:
    """Make a line small whole numbers whose sum, or sum of sizes, is a whole one of these, by its last element."""
    whole = (2 * lines).round().clamp(-4, 4)
    size = numbers.below(2, len(lines), 1) == 0
    whole = torch.where(size, whole.abs(), whole)
    want = numbers.whole(1 << 10, len(lines), 1).to(lines.dtype)
    want = torch.where(numbers.below(2, len(lines), 1) == 0, want, numbers.real(len(lines), 1).to(lines.dtype).round())
    whole[:, -1:] = want - whole[:, :-1].sum(1, keepdim=True)
    return whole


def _between(lines: Lines, numbers: Numbers) -> Lines:
    """Put all elements of a line between a number and its double, or another number; on one side, or on both."""
    one, other = numbers.real(len(lines), 1), numbers.real(len(lines), 1)
    other = torch.where(numbers.below(2, len(lines), 1) == 0, 2 * one, other)
    sizes = one + (other - one) * numbers.drawn(*lines.shape)
    sign = numbers.of_either_sign(len(lines), 1)
    both = torch.where(numbers.below(2, len(lines), 1) == 0, numbers.of_either_sign(*lines.shape), sign)
    return (sizes * both).to(lines.dtype)


def _bits(lines: Lines, numbers: Numbers) -> Lines:
    """Let the lower bits of numbers, as many as one number masks, be those of another."""
    form = BITS_OF[lines.dtype]
    lower = (1 << MANTISSA[lines.dtype]) - 1
    some = [w & lower for w in numbers.wholes.tolist()] or [0]
    values = torch.tensor([*some, *(lower & ~w for w in some), 0], device=lines.device)
    mask = values[numbers.below(len(values), len(lines), 1)]
    mask = torch.where(mask == 0, lower, mask)
    bits = values[numbers.below(len(values), len(lines), 1)]
    is_set = (lines.view(form).long() & ~mask) | (bits & mask)
    part = numbers.drawn(*lines.shape) < torch.where(numbers.below(2, len(lines), 1) == 0, 1.0, 0.25)
    return torch.where(part, is_set, lines.view(form).long()).to(form).view(lines.dtype)


_WAYS = (
    _at,
    _at,
    _one_at,
    _counted,
    _counted,
    _distant,
    _raised,
    _placed,
    _placed,
    _apart,
    _as_a_whole,
    _as_a_whole,
    _exact_sum,
    _between,
    _bits,
)
