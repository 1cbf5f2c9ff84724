"""Inputs beside each other that make up for each other: what is small in one is as much large in another.

Comes in: tensors as they are drawn, and how results come of them. Goes out: what they are then, in the same places. Who
leaves out what is small by itself, or computes in another order than the module, is wrong there. Runs in the reference
worker.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from rag_kernels.eval.numerics.arranged_inputs import lines_of
from rag_kernels.eval.traits.input_kinds import FIRST_FAINT, NEARLY_ALIKE

Sums = Callable[[], torch.Tensor]
FIRST, OTHERS = -30.0, 55.0  # powers of ten: of the first operand, and of the product of all others
LARGE = 4.0, 4.0  # powers of ten of what is cancelled: from the first on, as many further at most
BELOW, NEAR_ZERO = (8.0, 72.0), 1e-9
FADED = 20.0, 40.0  # powers of e by which a weight is less than the largest: from the first on, as many further
LEAST_WEIGHT = 1e-30
FAINT, NEAR = (-9.0, 2.0), (19.5, 2.5)  # powers of ten, and negative ones of two: the first, and how many further


def put_far_together(values: Sequence[torch.Tensor], generator: torch.Generator) -> None:
    """Put the first operand far to one side of one, the others to the other side: their products stay in range one by
    one, and not those of the others alone.
    """
    side = 1 if float(torch.rand((), generator=generator, device=values[0].device)) < 0.5 else -1
    for number, value in enumerate(values):
        power = OTHERS / (len(values) - 1) if number else FIRST
        drawn = power + torch.rand(value.shape, generator=generator, device=value.device)
        value.copy_(torch.where(value < 0, -1.0, 1.0) * 10 ** (side * drawn))


def put_cancelling(values: Sequence[torch.Tensor], generator: torch.Generator, own_error: Callable[[], float]) -> None:
    """Let the first operand cancel another one that is large: that one beside which the module itself loses least."""
    first, own = values[0], [value.clone() for value in values]
    tried: list[tuple[float, int, torch.Tensor]] = []
    for number, other in enumerate(values[1:], 1):
        if not _spreads(other, first):
            continue
        power = LARGE[0] + LARGE[1] * torch.rand(other.shape, generator=generator, device=other.device)
        large = (torch.where(other < 0, -1.0, 1.0) * 10**power).round().to(other.dtype)
        other.copy_(large)
        first.copy_(-large)
        tried.append((own_error(), number, large))
        for value, before in zip(values, own, strict=True):
            value.copy_(before)
    if tried:
        _, number, large = min(tried, key=lambda one: one[0])
        values[number].copy_(large)
        first.copy_(-large)


def _spreads(value: torch.Tensor, over: torch.Tensor) -> bool:
    """Return whether a tensor may be spread over another one's form."""
    sizes = zip(value.shape[::-1], over.shape[::-1], strict=False)
    return value.dim() <= over.dim() and all(mine in (1, other) for mine, other in sizes)


def put_below_zero(values: Sequence[torch.Tensor], generator: torch.Generator) -> None:
    """Make one of several operands of a form zero, or next to it, and the others far below."""
    alike = [value for value in values if value.shape == values[0].shape]
    chosen = torch.rand((len(alike), *alike[0].shape), generator=generator, device=alike[0].device).argmax(0)
    for number, value in enumerate(alike):
        few, far = torch.rand((2, *value.shape), generator=generator, device=value.device)
        top = torch.where(few < 0.5, torch.zeros_like(few), NEAR_ZERO * few)
        value.copy_(torch.where(chosen == number, top, -(BELOW[0] + BELOW[1] * far)))


def faded(like: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return by which power of e each place of a last dimension fades: by none at one of them."""
    power = FADED[0] + FADED[1] * torch.rand(like.shape[-1], generator=generator, device=like.device)
    power[torch.randint(0, like.shape[-1], (1,), generator=generator, device=like.device)] = 0
    return power


def put_fading(
    scores: Sequence[torch.Tensor], factors: Sequence[torch.Tensor], generator: torch.Generator, *, side: float = -1.0
) -> None:
    """Let all lines of what a softmax takes, or of factors, fade along them alike; scores by so much, to a side."""
    for value in scores:
        value.copy_((side * faded(value, generator)).expand(value.shape))
    for value in factors:
        sign = torch.where(value < 0, -1.0, 1.0)
        value.copy_(sign * (1 + 0.1 * value.abs().clamp(max=1)) * torch.exp(-faded(value, generator)))


def put_fading_scores(query: torch.Tensor, key: torch.Tensor, scale: float, generator: torch.Generator) -> None:
    """Let products of all queries with a key fade from key to key, where these are multiplied by `scale` then."""
    line = torch.nn.functional.normalize(torch.randn(query.shape[-1], generator=generator, device=query.device), dim=-1)
    power = faded(key[..., 0], generator).unsqueeze(-1)
    query.copy_((line * math.sqrt(query.shape[-1])).expand(query.shape))
    key.copy_((-power * line / (scale * math.sqrt(query.shape[-1]))).expand(key.shape))


def outweigh(value: torch.Tensor, weight: torch.Tensor, generator: torch.Generator) -> None:
    """Let what is weighed be as large as its weight is small, so that all terms count alike."""
    drawn = torch.rand(value.shape, generator=generator, device=value.device)
    sign = torch.where(value < 0, -1.0, 1.0)
    counts = weight.abs() > LEAST_WEIGHT * weight.abs().max()
    value.copy_(torch.where(counts, sign * (0.5 + drawn) * weight.abs().max() / weight.abs(), torch.zeros_like(weight)))


def put_outweighing(weight: torch.Tensor, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Let scores fade, and an input of their form be as far below zero as its weight is small; return where it is."""
    fades = faded(weight, generator).expand(weight.shape)
    drawn = torch.rand(value.shape, generator=generator, device=value.device)
    weight.copy_(-fades)
    value.copy_(-(0.5 + drawn) * fades.exp())
    return fades > FADED[0] + FADED[1] / 2


def put_beside(kind: str, inputs: Sequence[torch.Tensor], generator: torch.Generator) -> None:
    """Make one input faint and all others zero; or all lines of inputs one line, but for little."""
    if kind == NEARLY_ALIKE:
        line = lines_of(inputs[0])[0].clone() if inputs else torch.zeros(0)
        apart = NEAR[0] + NEAR[1] * float(torch.rand((), generator=generator, device=line.device))
        for value in inputs:
            if value.shape[-1] == len(line):
                noise = torch.randn(value.shape, generator=generator, device=value.device)
                value.copy_(line * (1 + noise * 2**-apart))
        return
    faint = 0 if kind == FIRST_FAINT else len(inputs) - 1
    for number, value in enumerate(inputs):
        power = FAINT[0] + FAINT[1] * torch.rand(value.shape, generator=generator, device=value.device)
        value.copy_(torch.where(value < 0, -1.0, 1.0) * 10**power if number == faint else torch.zeros_like(value))


def any_size(own: torch.Tensor, generator: torch.Generator, *, least: float, most: float) -> torch.Tensor:
    """Return a tensor whose lines are each of about one size, any power of ten between these, or go through all of
    them; the signs stay.
    """
    lines = lines_of(own)
    place = torch.rand((len(lines), 1), generator=generator, device=own.device, dtype=torch.float64).repeat(
        1, lines.shape[1]
    )
    place[1::2] += torch.arange(lines.shape[1], device=own.device) / lines.shape[1]
    near = 1 + 0.01 * torch.rand(lines.shape, generator=generator, device=own.device)
    power = least + (most - least) * (place % 1)
    return (torch.where(lines < 0, -1.0, 1.0) * near * 10**power).reshape(own.shape).to(own.dtype)
