"""Kinds of inputs on which numbers are checked; runs in the reference worker.

Comes in: one input as the problem's own `get_inputs` made it. Goes out: a tensor of the same form with another
kind of content. Only floating-point inputs are changed; parameters are moved or rotated in every draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from rag_kernels.eval.input_kinds import (
    BRINK,
    CLUSTERS,
    CREST,
    DEEP,
    DEEPEST,
    DISORDER,
    EDGES,
    FADING,
    FAR_APART,
    FAR_PARAMETERS,
    HUGE,
    INFINITE,
    INTEGER_KINDS,
    IRREGULAR,
    LARGE_PARAMETERS,
    LINES,
    LOW,
    MASKED,
    NON_FINITE,
    OVERFLOW,
    PIVOTS,
    PROBES,
    RAISED,
    SAME_SUMS,
    SEARCHED,
    SIDES,
    SMALL_WHOLE,
    SORTED_ROWS,
    TWICE,
    TWINS,
    WHOLE,
)
from rag_kernels.eval.records import IndexBound

LARGEST = {torch.float16: 1e3, torch.float8_e4m3fn: 1e2, torch.float8_e5m2: 1e4}  # large numbers
MAX_ZERO_SHARE = 0.2
EDGE = 16  # elements of a tail: the width of a vector
MANY = 16  # lines of a parameter, of which three may be lost
FEW = 8  # elements: too few for any of them to be zero
FEW_IRREGULAR = 256  # one of so many elements is another
MOST_SORTED = 1 << 20  # elements: bounds are few
SUMMED = (
    torch.int64,
    torch.int32,
    torch.int16,
    torch.uint8,
    torch.float64,
    torch.float32,
    torch.bfloat16,
    torch.float16,
)
SAME_SUM, EXCHANGED = ((0, 0), (1, -1), (0, 0), (1, -31), (1, -33)), 2  # of two neighbours
DISTINCT, CHANCES = 16, 32  # numbers at least; twice how many pairs would be alike by chance
MOST_WIDE = 1 << 24  # sums of a thousand exceed 32 bits; products of two stay within 64, and in fp64 exact


def is_structured(values: torch.Tensor) -> bool:
    """Return True for inputs whose arrangement means something: mostly zeros, symmetric, or sorted integers."""
    if values.numel() < 2 or is_sorted(values):
        return True
    sample = values.reshape(-1)[:: max(1, values.numel() // 100_000)]
    if values.is_floating_point() and float((sample == 0).float().mean()) > MAX_ZERO_SHARE:
        return True
    whole = not values.is_floating_point() and not values.is_complex() and values.dtype != torch.bool
    if whole and values.dim() == 1 and (bool((values.long().diff() >= 0).all()) or is_distinct(values)):
        return True
    if values.dim() < 2 or values.shape[-1] != values.shape[-2] or values.shape[-1] < 2:
        return False
    corner = values.reshape(-1, *values.shape[-2:])[0, :256, :256]
    corner = corner.long() if whole else corner
    same = (corner == corner.mT) | ((corner != corner) & (corner.mT != corner.mT))
    return bool(same.all())


def is_distinct(values: torch.Tensor) -> bool:
    """Return whether whole numbers are all different, as slots are that are written to, where by chance some were not.

    Where two are alike PyTorch itself says that any of both may stay.
    """
    if not DISTINCT <= values.numel() <= MOST_SORTED:
        return False
    several = values.long().sort().values
    span = int(several[-1]) - int(several[0]) + 1
    return values.numel() ** 2 > CHANCES * span and bool((several.diff() > 0).all())


def is_sorted(values: torch.Tensor) -> bool:
    """Return whether floats ascend along the last dimension, as the bounds of buckets do, and are not all the same."""
    if not values.is_floating_point() or values.dim() == 0 or values.shape[-1] < 4 or values.numel() > MOST_SORTED:
        return False
    steps = values.float().diff(dim=-1)
    return bool((steps >= 0).all()) and bool((steps > 0).any())


def at_constants(own: torch.Tensor, constants: Sequence[float], generator: torch.Generator) -> torch.Tensor:
    """Return an input of which half the elements lie on a constant of the problem, or next to one.

    Of either sign, and on a few of its multiples, where what divides by it and rounds has its steps.
    """
    if not own.is_floating_point() or own.dim() == 0 or own.numel() == 0:
        return own
    numbers = {s * c for c in constants for s in (1, -1)} | {n * c for c in constants for n in (2, 3, 5, 7)}
    exact = torch.tensor([0.0, -0.0, *sorted(numbers)], device=own.device).to(own.dtype)
    beside = [torch.nextafter(exact, torch.full_like(exact, to)) for to in (-math.inf, math.inf)]
    values = torch.cat([exact, exact, *beside])  # as often on one as beside it
    values = values[torch.isfinite(values)]
    chosen = values[torch.randint(0, len(values), own.shape, generator=generator, device=own.device)]
    normal = torch.randn(own.shape, generator=generator, device=own.device).to(own.dtype)
    return torch.where(torch.rand(own.shape, generator=generator, device=own.device) < 0.5, chosen, normal)


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


def redraw(
    kind: str,
    own: torch.Tensor,
    generator: torch.Generator,
    *,
    first: bool = True,
    dtype: torch.dtype | None = None,
) -> torch.Tensor:
    """Return an input of this kind, of the same shape, dtype and device as `own`; it may be the `first` of several.

    `dtype` is what it will be rounded to, if that is another one.
    """
    if (
        kind
        in {"own", IRREGULAR, DISORDER, SAME_SUMS, *FAR_PARAMETERS, *LINES, *TWICE, *PROBES, *INTEGER_KINDS, *SEARCHED}
        or not own.is_floating_point()
        or own.dim() == 0
        or own.numel() == 0
    ):
        return own
    if kind == "faint":  # of its own sign, so that roots and logarithms take it
        power = -18 * torch.rand(own.shape, generator=generator, device=own.device)
        if own.dim() > 1:  # every other row as a whole, half of these where squares are next to the least numbers
            _rows(power)[::2] = _rows(power)[::2, :1].clone()
            _rows(power)[::4] = -18.3 + _rows(power)[::4] / 60
        return (own * 10**power).to(own.dtype)
    normal = torch.randn(own.shape, generator=generator, device=own.device)
    if kind == WHOLE:  # of its own sign
        size = normal.abs().mul(40).ceil()
        return (size * normal.sign() if bool((own < 0).any()) else size).to(own.dtype)
    if kind == CLUSTERS:
        drawn = _clusters(normal, generator, several=first)
    elif kind == "large" and (greatest := LARGEST.get(dtype or own.dtype)):  # in which what is larger is infinite
        drawn = greatest * normal
    else:
        drawn = _KINDS[kind](normal, generator)
    least = max(torch.finfo(own.dtype).min, torch.finfo(drawn.dtype).min)
    value = (drawn.clamp(min=least) if kind == MASKED else drawn).to(own.dtype)
    return _other_nans(value, generator) if kind == NON_FINITE else value


def far_parameter(kind: str, own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a parameter far from where it begins; those of more dimensions are neither raised nor lowered."""
    if not own.is_floating_point() or own.numel() == 0 or (kind != LARGE_PARAMETERS and own.dim() > 1):
        return own
    drawn = torch.rand(own.shape, generator=generator, device=own.device)
    if kind != LARGE_PARAMETERS:
        return own + ((2 + 3 * drawn) * (1 if kind == RAISED else -1)).to(own.dtype)
    if own.numel() > 1:  # half of them change their sign
        flipped = torch.rand(own.shape, generator=generator, device=own.device) < 0.5
        drawn = torch.where(flipped, -1 - drawn, drawn)
    return own * (torch.where(drawn < 0, 5 * drawn, 5 + 5 * drawn)).to(own.dtype)


def put_far_apart(values: Sequence[torch.Tensor], generator: torch.Generator, *, sided: bool) -> None:
    """Make of several operands one far larger, and another zero, one or a half; the rest stay.

    Which ones is drawn for each part along the first dimension, of all operands of a form together: beside results
    that are large a small one is not looked at. On one side of zero none is zero, and all stay there.
    """
    forms: dict[torch.Size, list[torch.Tensor]] = {}
    for value in values:
        if value.dim() and value.numel():
            forms.setdefault(value.shape, []).append(value)
    for shape, alike in forms.items():
        device = alike[0].device
        parts = (shape[0], *(1 for _ in shape[1:]))
        part = torch.rand(max(2, len(alike)), *parts, generator=generator, device=device).argsort(0)
        for value, place in zip(alike, part, strict=False):
            sign = value.sign()
            least, span = (2, 1.5) if value.dtype == torch.float16 else (5, 3)
            power = least + span * torch.rand(shape, generator=generator, device=device)
            few = torch.tensor([1.0, 0.5] if sided else [0.0, 1.0, -1.0, 0.5], device=device)
            one = few[torch.randint(0, len(few), parts, generator=generator, device=device)]
            one = (one * sign if sided else one).to(value.dtype)
            value.copy_(
                torch.where(place == 0, (sign * 10**power).to(value.dtype), torch.where(place == 1, one, value))
            )


def put_same_sums(values: Sequence[torch.Tensor], generator: torch.Generator) -> None:
    """Make all lines of tensors of a form a few, but for two neighbours by which a sum or a polynomial stays the same:
    exchanged, one more and one less, one more and 31 or 33 less.

    Whole numbers, within what these tensors have in common.
    """
    forms: dict[tuple[torch.dtype, int], list[torch.Tensor]] = {}
    for value in values:
        if value.dim() > 1 and value.shape[-1] > 1 and value.dtype in SUMMED and value.numel():
            forms.setdefault((value.dtype, value.shape[-1]), []).append(value)
    for (_, n), alike in forms.items():
        if alike[0].is_floating_point():  # of which some may be NaN or infinite
            signed = all(bool((v < 0).any()) for v in alike)
            low, high, margin = (-100, 100, 34) if signed else (100, 300, 34)
        else:
            low, high = max(int(v.min()) for v in alike), min(int(v.max()) for v in alike)
            margin = 34 if high - low > 200 else 1
        if high - low <= 2 * margin:
            continue
        device = alike[0].device
        beside = torch.tensor(SAME_SUM, device=device)
        lines = torch.randint(low + margin, high - margin + 1, (FEW, n), generator=generator, device=device)
        for value in alike:
            rows = _rows(value)
            drawn = lines[torch.randint(0, FEW, (len(rows),), generator=generator, device=device)].clone()
            at = torch.randint(0, n - 1, (len(rows), 1), generator=generator, device=device)
            kind = torch.randint(
                0, len(SAME_SUM) if margin > 1 else EXCHANGED + 1, (len(rows),), generator=generator, device=device
            )
            two = torch.cat([at, at + 1], 1)
            both = drawn.gather(1, two)
            both = torch.where(kind.unsqueeze(1) == EXCHANGED, both.flip(1), both + beside[kind])
            value.copy_(drawn.scatter(1, two, both).to(value.dtype).reshape(value.shape))


def on_side_of(own: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Return an input on the side of zero on which the problem's own lies, and no nearer to it; as it is if on both.

    NaN lies on neither.
    """
    sound = own[~torch.isnan(own)] if own.is_floating_point() else own[:0]
    if not sound.numel():
        return value
    low, high = sound.min(), sound.max()
    if low >= 0:
        return value.abs().clamp(min=low)
    return -value.abs().clamp(min=-high) if high <= 0 else value


def beside_others(value: torch.Tensor, others: Sequence[torch.Tensor], generator: torch.Generator) -> torch.Tensor:
    """Return an input a part of whose elements are equal to another tensor's, as it is spread, or next to it."""
    for other in others:
        if not other.is_floating_point() or other.dtype != value.dtype or other.dim() == 0:
            continue
        try:
            same = other.expand(value.shape)
        except RuntimeError:
            continue
        above = torch.nextafter(same, torch.full_like(same, math.inf))
        below = torch.nextafter(same, torch.full_like(same, -math.inf))
        drawn = torch.rand(value.shape, generator=generator, device=value.device)
        for least, near in ((0.75, same), (0.65, above), (0.55, below)):
            value = torch.where(drawn > least, near, value)
            drawn = torch.where(drawn > least, 0.0, drawn)
    return value


def irregular(value: torch.Tensor, bound: IndexBound | None, generator: torch.Generator) -> torch.Tensor:
    """Return a tensor that is one value throughout, or whole numbers in order, with a few other ones within.

    Few, so that who reads a sample takes all for what that is. Other tensors stay.
    """
    flat = value.reshape(-1)
    if flat.numel() < 4 or value.is_complex():
        return value
    whole = not value.is_floating_point() and value.dtype != torch.bool
    alike = bool((flat == flat[0]).all())
    if not alike and not (whole and value.dim() == 1 and bool((flat.long().diff() == 1).all())):
        return value
    at = torch.randperm(flat.numel(), generator=generator, device=flat.device)[: max(1, flat.numel() // FEW_IRREGULAR)]
    if value.dtype == torch.bool:
        other = ~flat[at]
    elif not whole:
        other = torch.randn(at.shape, generator=generator, device=flat.device).to(value.dtype)
    elif not alike:
        other = flat[torch.randint(0, flat.numel(), at.shape, generator=generator, device=flat.device)]
    else:
        least = 0 if int(flat[0]) == 1 else 1  # a mask of ones may have zeros, lengths and counts may be less
        low, high = (bound.low, bound.high) if bound is not None else (least, int(flat[0]) + 1)
        if high - low < 2:
            return value
        other = torch.randint(low, high, at.shape, generator=generator, device=flat.device).to(value.dtype)
    return flat.clone().index_copy_(0, at, other).reshape(value.shape)


def is_mask(value: torch.Tensor) -> bool:
    """Return whether a tensor is of truth values, of ones and perhaps zeros, or of two floats."""
    if value.dim() == 0 or value.shape[-1] < 2 or value.numel() < 2 or value.is_complex():
        return False
    if value.dtype == torch.bool:
        return True
    for some in (value.reshape(-1)[:FEW_IRREGULAR], value):  # most are none by their first elements
        least, most = some.min(), some.max()
        if not bool(((some == least) | (some == most)).all()):
            return False
    return bool(least < most) if value.is_floating_point() else bool(least >= 0) and bool(most == 1)


def in_runs(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a mask each line of which begins with a run of one of its two values, as long as it happens to be, and
    then has the other: one at least, or to the end in half of the lines, where the rest stays in the others.
    """
    lines = _rows(value).clone()
    count, n = lines.shape
    low, high = (lines.min(), lines.max()) if value.is_floating_point() else lines.new_tensor([0, 1])
    drawn = torch.rand(3, count, 1, generator=generator, device=value.device)
    first = torch.where(drawn[0] < 0.5, low, high)
    length = 1 + (drawn[1] * (n - 1)).long().clamp(max=n - 2)
    at = torch.arange(n, device=value.device)
    ends = (at == length) | ((at > length) & (drawn[2] < 0.5))
    lines = torch.where(at < length, first, torch.where(ends, torch.where(drawn[0] < 0.5, high, low), lines))
    return lines.reshape(value.shape)


def disordered(
    value: torch.Tensor, bound: IndexBound | None, generator: torch.Generator, *, ascends: bool = True
) -> torch.Tensor:
    """Return indices that ascend, but for a few, or floats that ascend at other distances; other tensors stay.

    Floats that need not ascend, though the problem's do, change places here and there.
    """
    if is_sorted(value) and not ascends:
        count = max(2, value.shape[-1] // FEW_IRREGULAR)
        at = torch.randperm(value.shape[-1], generator=generator, device=value.device)[:count]
        return value.clone().index_copy_(-1, at, value.index_select(-1, at.roll(1)))
    if is_sorted(value):
        steps = value.double().diff(dim=-1)
        uneven = steps * (0.2 + 1.6 * torch.rand(steps.shape, generator=generator, device=value.device))
        uneven *= steps.sum(-1, keepdim=True) / uneven.sum(-1, keepdim=True)
        first = value[..., :1]
        return torch.cat([first, (first + uneven.cumsum(-1)).to(value.dtype)], -1)
    whole = not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool
    if bound is None or not whole or value.dim() != 1 or value.numel() < 4 or bool((value.long().diff() < 0).any()):
        return value
    count = max(1, value.numel() // FEW_IRREGULAR)
    at = torch.randperm(value.numel(), generator=generator, device=value.device)[:count]
    other = torch.randint(bound.low, bound.high, at.shape, generator=generator, device=value.device)
    return value.clone().index_copy_(0, at, other.to(value.dtype))


def lines_moved(value: torch.Tensor, dim: int, generator: torch.Generator) -> torch.Tensor:
    """Return floats whose lines along a dimension are in another order."""
    if value.dim() < 2 or not value.is_floating_point():
        return value
    return value.index_select(dim, torch.randperm(value.shape[dim], generator=generator, device=value.device))


def some_lines_zero(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return floats of which a quarter of the lines, the second one at least, are zero."""
    lines = _rows(value)
    zero = torch.rand(len(lines), 1, generator=generator, device=value.device) < 0.25
    zero[1:2] = True
    return torch.where(zero, torch.zeros_like(lines), lines).reshape(value.shape)


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
        half = _rows(drawn) if own.dim() > 1 else drawn.reshape(-1)
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


def _rows(x: torch.Tensor) -> torch.Tensor:
    return x.reshape(-1, x.shape[-1]) if x.dim() > 1 else x.reshape(1, -1)


def _spread(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put every row at a magnitude of its own, from 1e-3 to 1e3.

    The first and the last, which a sniffer reads, below 1.
    """
    rows = _rows(x)
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


def _large(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put every other row at thousands, and the others at magnitudes of their own from 1e4 to 1e6."""
    rows = _rows(x)
    power = 3 + (1 + 2 * torch.rand(rows.shape[0], 1, generator=generator, device=x.device))
    power[torch.randint(0, 2, (), generator=generator, device=x.device) :: 2] = 3
    return (rows * 10**power).reshape(x.shape)


def _deep(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put every row far below zero, at a place of its own from -3e4 to -1e9; further off x * c - top overflows."""
    rows = _rows(x)
    power = 4.5 + 4.5 * torch.rand(rows.shape[0], 1, generator=generator, device=x.device)
    return (-(1 + 0.1 * rows.abs()) * 10**power).reshape(x.shape)


def _deepest(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put every row as far below zero as there are numbers, at a place of its own from -1e9 to -1e38."""
    rows = _rows(x)
    power = 9 + 29 * torch.rand(rows.shape[0], 1, generator=generator, device=x.device)
    return (-(1 + 0.1 * rows.abs()) * 10**power).reshape(x.shape)


def _masked(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make a third of the elements the least number that there is, and every other row throughout."""
    least = torch.full_like(x, torch.finfo(x.dtype).min)
    at = torch.rand(x.shape, generator=generator, device=x.device) < 0.33
    _rows(at)[::2] = True
    return torch.where(at, least, x)


def _crest(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put one element of each row, a zero, above the others: what these add to it are the last digits that count.

    By 8 to 24, or so far that all of them add e^-5 to e^-10: the logarithm of their sum is as small.
    """
    rows = 0.1 * _rows(x)
    drawn = torch.rand(rows.shape[0], 1, generator=generator, device=x.device)
    above = 8 + 16 * drawn
    above[::2] = math.log(rows.shape[1]) + 5 + 5 * drawn[::2]
    at = torch.randint(0, rows.shape[1], (rows.shape[0], 1), generator=generator, device=x.device)
    return (rows - above).scatter(1, at, 0.0).reshape(x.shape)


def _clusters(x: torch.Tensor, generator: torch.Generator, *, several: bool) -> torch.Tensor:
    """Put every row close to one of four that the inputs of a call have in common, of others than the first to one.

    What lies close together is far from the middle of all then.
    """
    rows = _rows(x)
    common = torch.Generator(x.device).manual_seed(generator.initial_seed())
    centres = 4 * torch.randn(4, rows.shape[1], generator=common, device=x.device)
    nearest = torch.randint(0, 4 if several else 1, (rows.shape[0],), generator=generator, device=x.device)
    return (centres[nearest] + 0.02 * rows).reshape(x.shape)


def _sides(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Put every place of a dimension on one of two sides, the same for dimensions as long in all inputs of a call:
    elements that are on one side in both of the last two are large, and others as far below zero.
    """
    signs = torch.ones((), device=x.device)
    for dim in range(max(0, x.dim() - 2), x.dim()):
        common = torch.Generator(x.device).manual_seed(generator.initial_seed() + x.shape[dim])
        side = torch.randint(0, 2, x.shape[dim : dim + 1], generator=common, device=x.device)
        signs = signs * (2.0 * side - 1).reshape(-1, *(1 for _ in x.shape[dim + 1 :]))
    return 3 * signs + 0.3 * x


def _pivots(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make elements of a row large that a sample would take: the first, the last and those that part it evenly.

    A quarter of the rows have seven such, another one three that are alike and lie evenly about the middle, as what
    takes a median reads; of the others each has one to three, since few of many decide a mean.
    """
    rows = _rows(x).clone()
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
    near = torch.cat([n * eighth // 16, torch.full_like(eighth, n // 2), n * (16 - eighth) // 16], 1)
    level = size[3::4, :1] * (1 + 1e-3 * torch.rand(near.shape, generator=generator, device=x.device))
    rows[3::4] = (0.01 * x.reshape(rows.shape)[3::4]).scatter(1, near, level)
    return rows.reshape(x.shape)


def _twins(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make every other row the one before it, but for one element that counts: a sample or a beginning shows none."""
    rows = _rows(x).clone()
    few = rows[1::2]
    at = torch.randint(0, rows.shape[1], (len(few), 1), generator=generator, device=x.device)
    rows[1::2] = rows[: 2 * len(few) : 2].scatter_add(1, at, 3 + few.gather(1, at).abs())
    return rows.reshape(x.shape)


def _sorted_rows(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Let every other row ascend, and the others descend."""
    rows = _rows(x).sort(dim=-1).values
    rows[1::2] = rows[1::2].flip(-1)
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
    rows = _rows(x).clone()
    rows[::2] = rows[::2, :1].round()
    rows[::4] += 1e-3 * _rows(x)[::4]
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


def _other_nans(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
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


def spoiled(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a parameter of which a quarter are zero and, where there are many, three are not finite."""
    x = with_zeros(x, generator)
    if x.is_floating_point() and x.dim() and x.shape[0] >= MANY:
        flat = x.reshape(-1).clone()
        at = torch.randint(0, flat.numel(), (3,), generator=generator, device=x.device)
        flat[at] = torch.tensor([math.nan, math.inf, -math.inf], dtype=x.dtype, device=x.device)
        x = flat.reshape(x.shape)
    return x


def with_zeros(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return floats of which a quarter are zero."""
    if not x.is_floating_point() or x.numel() < FEW:
        return x
    return torch.where(torch.rand(x.shape, generator=generator, device=x.device) < 0.25, torch.zeros_like(x), x)


_KINDS: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
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
    DEEP: _deep,
    DEEPEST: _deepest,
    MASKED: _masked,
    CREST: _crest,
    PIVOTS: _pivots,
    SIDES: _sides,
    SORTED_ROWS: _sorted_rows,
    TWINS: _twins,
    OVERFLOW: _overflow,
    BRINK: _brink,
    HUGE: _huge,
    FADING: lambda x, g: x * 1e-20,
    SMALL_WHOLE: lambda x, g: x.sign() * (2 * x.abs()).ceil().clamp(1, 4),
    FAR_APART: lambda x, g: x,
    "sparse": _sparse,
    NON_FINITE: _non_finite,
    INFINITE: lambda x, g: torch.full_like(x, math.inf),
}


def one_hot_rows(weight: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a weight of which each output (first dimension) takes one input, times a power of two.

    Products are exact.
    """
    flat = torch.zeros_like(weight).reshape(weight.shape[0], -1)
    rows = torch.arange(flat.shape[0], device=weight.device)
    columns = torch.randint(0, flat.shape[1], (flat.shape[0],), generator=generator, device=weight.device)
    power = torch.randint(-2, 3, (flat.shape[0],), generator=generator, device=weight.device)
    flat[rows, columns] = (2.0**power).to(weight.dtype)
    return flat.reshape(weight.shape)
