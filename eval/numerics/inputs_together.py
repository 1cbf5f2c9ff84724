"""Several inputs of a call at once: far apart, of the same sums, equal here and there.

Comes in: tensors as they are drawn. Goes out: what they are beside each other. Runs in the reference worker.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rag_kernels.eval.numerics.arranged_inputs import lines_of
from rag_kernels.eval.traits.input_kinds import GREATER, LESSER

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
LONG = 1024  # elements, whose polynomials of two such lines differ by a multiple of 2^64
BALANCED_PARTS = 0.3  # of which operands are as far above one as below
FEW = 8  # lines that come again and again
SAME_SUM, EXCHANGED = ((0, 0), (1, -1), (0, 0), (1, -31), (1, -33)), 2  # of two neighbours


def put_far_apart(
    values: Sequence[torch.Tensor], generator: torch.Generator, *, sided: bool, divides: bool = False
) -> None:
    """Make of several operands one far larger, and another zero, one or a half; the rest stay. Or each is as far above
    one as others are below it, so that some products are large and others near one. It is farther what is divided.

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
        balanced = torch.rand(parts, generator=generator, device=device) < BALANCED_PARTS
        common = torch.rand(shape, generator=generator, device=device)
        part = torch.rand(max(2, len(alike)), *parts, generator=generator, device=device).argsort(0)
        for value, place in zip(alike, part, strict=False):
            sign = value.sign()
            half = value.dtype == torch.float16
            least, span = (2, 1.5) if half else (5, 11 if divides else 3)
            power = least + span * torch.rand(shape, generator=generator, device=device)
            numbers = [1.0, 0.5] + [-1.0] * (not sided) + [0.0] * (not sided and not divides)
            few = torch.tensor(numbers, device=device)
            one = few[torch.randint(0, len(few), parts, generator=generator, device=device)]
            one = (one * (0.7 + 0.6 * common) if divides else one) * (sign if sided else 1)
            one = one.to(value.dtype)
            apart = torch.where(place == 0, (sign * 10**power).to(value.dtype), torch.where(place == 1, one, value))
            side = torch.randint(0, 2, parts, generator=generator, device=device) * 2 - 1
            even = (sign * 10 ** (side * (1 + (1 if half else 10) * common))).to(value.dtype)
            value.copy_(torch.where(balanced, even, apart))


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
            rows = lines_of(value)
            drawn = lines[torch.randint(0, FEW, (len(rows),), generator=generator, device=device)].clone()
            at = torch.randint(0, n - 1, (len(rows), 1), generator=generator, device=device)
            kind = torch.randint(
                0, len(SAME_SUM) if margin > 1 else EXCHANGED + 1, (len(rows),), generator=generator, device=device
            )
            two = torch.cat([at, at + 1], 1)
            both = drawn.gather(1, two)
            both = torch.where(kind.unsqueeze(1) == EXCHANGED, both.flip(1), both + beside[kind])
            changed = drawn.scatter(1, two, both)
            if n >= LONG:
                _put_alternating(changed, low + margin, generator)
            value.copy_(changed.to(value.dtype).reshape(value.shape))


def _put_alternating(lines: torch.Tensor, least: int, generator: torch.Generator) -> None:
    """Make a quarter of the lines one of two that every polynomial of a machine word has in common: two values after
    Thue and Morse, or each the other.
    """
    signs = torch.zeros(1, dtype=torch.int64, device=lines.device)
    while 2 * len(signs) <= lines.shape[1]:
        signs = torch.cat([signs, 1 - signs])
    drawn = torch.rand(2, len(lines), generator=generator, device=lines.device)
    some = (drawn[0] < 0.25).nonzero().reshape(-1)
    lines[some] = lines[:1].clone()
    lines[some, : len(signs)] = least + torch.where(drawn[1, some, None] < 0.5, signs, 1 - signs)


def put_far_under(
    values: Sequence[torch.Tensor], masks: Sequence[torch.Tensor], where: bool, generator: torch.Generator
) -> None:
    """Make floats far where a mask of their form, or of their first dimensions, is true, or is not."""
    for value in values:
        for mask in masks:
            ones = (1,) * (value.dim() - mask.dim())
            try:
                hidden = (mask != 0).reshape(*mask.shape, *ones).expand(value.shape) == where
            except RuntimeError:
                continue
            power = 18 + 2 * torch.rand(value.shape, generator=generator, device=value.device)
            far = torch.where(value < 0, -1.0, 1.0) * 10 ** power.clamp(max=4 if value.dtype == torch.float16 else 20)
            value.copy_(torch.where(hidden, far.to(value.dtype), value))


def put_agreeing(
    floats: Sequence[torch.Tensor],
    targets: Sequence[torch.Tensor],
    places: Sequence[tuple[torch.Tensor, int]],
    kind: str,
    generator: torch.Generator,
) -> None:
    """Let targets of two values be what the sign of a tensor of their form says, and let places, which are below a
    number, tell the largest of as many elements, as after training: by as much as its exponential still counts.

    Or all targets are one of both.
    """
    for target in targets:
        score = next((f for f in floats if f.shape == target.shape and f is not target), None)
        if score is None:
            continue
        low, high = (target.min(), target.max()) if target.is_floating_point() else target.new_tensor([0, 1])
        sign = {GREATER: torch.ones_like(score), LESSER: -torch.ones_like(score)}.get(kind, score.sign())
        target.copy_(torch.where(sign > 0, high, low))
        margin = 8 + 3 * torch.rand((), generator=generator, device=score.device)
        size = margin + 0.3 * torch.randn(score.shape, generator=generator, device=score.device)
        score.copy_((sign * size).to(score.dtype))
    for place, count in places:
        for score in floats:
            dim = next((d for d in range(score.dim()) if _but(score.shape, d) == place.shape), None)
            if dim is None or score.shape[dim] != count or bool((place < 0).any()) or bool((place >= count).any()):
                continue
            score.copy_(0.1 * torch.randn(score.shape, generator=generator, device=score.device))
            margin = math.log(count) + 7.5 + 1.5 * torch.rand((), generator=generator, device=score.device)
            at = place.long().unsqueeze(dim)
            score.scatter_(dim, at, margin.to(score.dtype).expand(at.shape))
            break


def _but(shape: torch.Size, dim: int) -> torch.Size:
    """Return a shape without one of its dimensions."""
    return torch.Size(size for d, size in enumerate(shape) if d != dim)


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
