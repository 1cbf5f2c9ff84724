"""Inputs whose arrangement means something (sorted, distinct, masks, all alike), and others arranged otherwise.

Comes in: one input as the problem's own `get_inputs` made it, with what it may index. Goes out: what its arrangement
is, and a tensor of the same form whose arrangement a problem might have. Runs in the reference worker.
"""

from __future__ import annotations

import torch

from rag_kernels.eval.records import IndexBound

MAX_ZERO_SHARE = 0.2
FEW_IRREGULAR = 256  # one of so many elements is another
MOST_SORTED = 1 << 20  # elements: bounds are few
WHOLE_OF = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}
SOME_DRAWN = 8
FEW_HUGE_ONES = 64  # as many as checksums have lanes
HOLE = 8  # of a mask's lines, one part to two
DISTINCT, CHANCES = 16, 32  # numbers at least; twice how many pairs would be alike by chance


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
    lines = lines_of(value).clone()
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


def nearly_in_order(value: torch.Tensor, bound: IndexBound | None, generator: torch.Generator) -> torch.Tensor:
    """Return places as they come one after the other, again and again, but for a few neighbours that are exchanged."""
    whole = not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool
    low = 0 if bound is None else max(0, bound.low)
    if bound is None or not whole or value.numel() < 4 or bound.high - low < 2:
        return value
    line = low + torch.arange(value.numel(), device=value.device) % (bound.high - low)
    pairs = torch.randperm(len(line) // 2, generator=generator, device=value.device)
    at = 2 * pairs[: max(1, len(line) // FEW_IRREGULAR)]
    line = line.index_copy(0, torch.cat([at, at + 1]), torch.cat([line[at + 1], line[at]]))
    return line.to(value.dtype).reshape(value.shape)


def nearly_as_kept(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return what a module keeps, nearly: a mask with a block of its lines turned, other numbers of which a few are in
    each other's places.

    One number alone is halved. No line of a mask comes to have one value alone. Of whole numbers in order one lies
    elsewhere between its neighbours; floats that ascend, or are one number, stay.
    """
    if value.numel() == 1 and value.is_floating_point():  # as a temperature is
        return 0.5 * value
    if value.numel() < 4 or value.is_complex() or value.dim() == 0:
        return value
    if is_mask(value):
        return _with_hole(value, generator)
    flat = value.reshape(-1)
    if is_sorted(value) or bool((flat == flat[0]).all()):
        return value
    whole = not value.is_floating_point()
    if whole and value.dim() == 1 and bool((value.long().diff() >= 0).all()):
        return uneven(value, generator)
    at = torch.randperm(flat.numel(), generator=generator, device=flat.device)[: max(2, flat.numel() // FEW_IRREGULAR)]
    return flat.clone().index_copy_(0, at, flat[at.roll(1)]).reshape(value.shape)


def _with_hole(mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a mask in which a block, of an eighth to a quarter of lines and columns, has the other value."""
    lines = lines_of(mask)
    low, high = (lines.min(), lines.max()) if mask.is_floating_point() else lines.new_tensor([0, 1])
    is_low = lines == low
    block = is_low.clone().zero_()
    drawn = torch.rand(2, 2, generator=generator, device=mask.device).tolist()
    rows, columns = (_within(size, *part) for size, part in zip(lines.shape, drawn, strict=True))
    block[rows, columns] = True
    turned = is_low ^ block
    lost = turned.all(1, keepdim=True) | ~turned.any(1, keepdim=True)  # as lines of one value are
    return torch.where(torch.where(lost, is_low, turned), low, high).reshape(mask.shape)


def _within(size: int, long: float, far: float) -> slice:
    """Return a part of so many lines, and neither the first nor the last of them where there are more."""
    length = max(1, int(size * (1 + long) / HOLE))
    begin = min(1, size - length) + int(far * max(1, size - 1 - length))
    return slice(begin, begin + length)


def uneven(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return whole numbers that never descend of which one within lies elsewhere between its neighbours; of whole
    numbers that are all alike one that is more, and one that is as much less. Other tensors stay.

    Ends, order and sums stay, and who looks at some of them hardly ever sees anything of it.
    """
    whole = not value.is_floating_point() and not value.is_complex() and value.dtype != torch.bool
    if not whole or value.dim() != 1 or not 4 <= value.numel() <= MOST_SORTED:
        return value
    wide, device = value.long(), value.device
    steps = wide.diff()
    if int(wide[0]) > 1 and bool((steps == 0).all()):
        at = torch.randperm(len(wide), generator=generator, device=device)[:2]
        more = torch.randint(1, int(wide[0]), (1,), generator=generator, device=device)
        return wide.index_add(0, at, torch.cat([more, -more])).to(value.dtype)
    if bool((steps < 0).any()):
        return value
    apart = int(bool((steps > 0).all()))  # what each is above the one before, at least
    low, room = wide[:-2] + apart, wide[2:] - wide[:-2] - 2 * apart
    movable = torch.nonzero(room > 0).flatten()
    at = movable[torch.randperm(len(movable), generator=generator, device=device)[:1]]
    further = 1 + (torch.rand(len(at), generator=generator, device=device) * room[at]).long().clamp(max=room[at] - 1)
    moved = low[at] + (wide[at + 1] - low[at] + further) % (room[at] + 1)
    return wide.index_copy(0, at + 1, moved).to(value.dtype)


def lines_moved(value: torch.Tensor, dim: int, generator: torch.Generator) -> torch.Tensor:
    """Return floats whose lines along a dimension are in another order."""
    if value.dim() < 2 or not value.is_floating_point():
        return value
    return value.index_select(dim, torch.randperm(value.shape[dim], generator=generator, device=value.device))


def with_one_other(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return floats of which one is half of what it was: the largest of a few that are drawn."""
    if not value.is_floating_point() or not value.numel():
        return value
    drawn = torch.randint(value.numel(), (SOME_DRAWN,), generator=generator, device=value.device)
    other = value.clone(memory_format=torch.contiguous_format)
    flat = other.view(-1)
    at = drawn[flat[drawn].abs().nan_to_num(posinf=0.0).argmax()]
    flat[at] *= 0.5
    return other


def with_few_huge(value: torch.Tensor, generator: torch.Generator, *, others: bool) -> torch.Tensor:
    """Return floats of which the first few are so large that sums of any order and width lose the rest, their squares
    too; which may be others.
    """
    if value.dtype not in WHOLE_OF or value.numel() < 4 * FEW_HUGE_ONES:
        return value
    value = value.contiguous()
    huge = value.reshape(-1)[:FEW_HUGE_ONES].abs().add(1).mul(1e4 if value.dtype == torch.float16 else 1e18)
    less = 0.5 * torch.rand(value.shape, generator=generator, device=value.device).to(value.dtype)
    rest = value * (1 - less) if others else value.clone()
    rest.reshape(-1)[:FEW_HUGE_ONES] = huge
    return rest


def with_other_digits(value: torch.Tensor, less: int, generator: torch.Generator) -> torch.Tensor:
    """Return floats with other bits in the lower half of each, but for its first; in a third or a quarter if these are
    to be `less`, by one or two.

    Zeros, and what is not finite, stay.
    """
    whole = WHOLE_OF.get(value.dtype)
    if whole is None:
        return value
    most = 1 << (value.element_size() * (4 - less) - (not less))
    other = torch.randint(0, most, value.shape, generator=generator, device=value.device).to(whole)
    changed = (value.contiguous().view(whole) ^ other).view(value.dtype)
    return torch.where((value == 0) | ~torch.isfinite(value) | ~torch.isfinite(changed), value, changed)


def some_lines_zero(value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return floats of which a quarter of the lines, the second one at least, are zero."""
    lines = lines_of(value)
    zero = torch.rand(len(lines), 1, generator=generator, device=value.device) < 0.25
    zero[1:2] = True
    return torch.where(zero, torch.zeros_like(lines), lines).reshape(value.shape)


def lines_of(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor as lines of its last dimension."""
    return x.reshape(-1, x.shape[-1]) if x.dim() > 1 else x.reshape(1, -1)
