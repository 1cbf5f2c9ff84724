"""Kinds of inputs whose lines hang together: steep ones, orthonormal ones, long ways through a square, next to others.

Comes in: numbers of a normal distribution, or several tensors as drawn. Goes out: tensors of the same form. Knows
nothing of what the problem itself is given (`input_draws.py`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rag_kernels.eval.numerics.arranged_inputs import lines_of

MOST_ORTHONORMAL = 1 << 20  # elements: more take seconds
FAR, NEAR = 1e3, 0.5
LITTLE = 1e-3  # of its size, by which a line is off another


def steep(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make each row smooth and steep: a power of the place from the second to the sixteenth, or a geometric sequence;
    of either sign, mostly below zero, in order or in none.
    """
    rows = lines_of(x)
    count, n = rows.shape
    drawn = torch.rand(6, count, 1, generator=generator, device=x.device)
    place = torch.arange(1, n + 1, device=x.device, dtype=torch.float64)
    powers = (place / n) ** (2 + 14 * drawn[0].double()) * 10 ** (12 * drawn[1].double())
    geometric = 1e-3 * (1.05 + 0.25 * drawn[0].double()) ** place.clamp(max=400)
    values = torch.where(drawn[2] < 0.5, powers, geometric.clamp(max=1e30))
    values = torch.where(drawn[3] < 0.75, -values, values)
    order = torch.rand(count, n, generator=generator, device=x.device).argsort(1)
    order = torch.where(drawn[4] < 0.5, torch.arange(n, device=x.device).expand(count, n), order)
    return values.gather(1, order).to(x.dtype).reshape(x.shape)


def orthonormal(x: torch.Tensor, generator: torch.Generator, little: float) -> torch.Tensor:
    """Make rows, or columns where these are fewer, of the last two dimensions orthonormal, but for so much."""
    if x.dim() < 2 or x.numel() > MOST_ORTHONORMAL:
        return x
    wide = x.double()
    tall = wide.mT if wide.shape[-1] > wide.shape[-2] else wide
    across: torch.Tensor = torch.linalg.qr(tall)[0]
    made = across.mT if wide.shape[-1] > wide.shape[-2] else across
    noise = torch.randn(x.shape, generator=generator, device=x.device)
    return (made + little * noise).to(x.dtype)


def long_ways(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Make neighbours of a square near and all else far, and what is no square far but at its first place."""
    noise = 1 + 0.1 * torch.rand(x.shape, generator=generator, device=x.device)
    if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
        far = 10 * FAR * noise
        far[..., :1] = 0
        return far
    return FAR * noise * (1 - _chain(x)) + NEAR * noise * _chain(x)


def long_chain(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Let each place of a square lead to the next one alone, and what is no square have its first place alone."""
    if x.dim() < 2 or x.shape[-1] != x.shape[-2]:
        first = torch.zeros_like(x)
        first[..., :1] = 1 + 0.1 * torch.rand((), generator=generator, device=x.device)
        return first
    return _chain(x).expand(x.shape).clone()


def _chain(x: torch.Tensor) -> torch.Tensor:
    """Return ones where a place of a square leads to the next one, and the last one to itself; zeros elsewhere."""
    links = torch.eye(x.shape[-1], device=x.device).roll(1, 1)
    links[-1] = 0
    links[-1, -1] = 1
    return links


def put_next_to_lines(values: Sequence[torch.Tensor], generator: torch.Generator) -> None:
    """Let lines of tensors that are as long be next to lines of that with the fewest, in any order."""
    lengths: dict[int, list[torch.Tensor]] = {}
    for value in values:
        if value.is_floating_point() and value.dim() > 1 and value.numel():
            lengths.setdefault(value.shape[-1], []).append(value)
    for alike in lengths.values():
        few = min(alike, key=lambda value: value.numel())
        lines = lines_of(few).clone()
        for value in alike:
            if value is few or value.shape == few.shape:
                continue
            rows = lines_of(value)
            chosen = torch.randint(0, len(lines), (len(rows),), generator=generator, device=value.device)
            noise = torch.randn(rows.shape, generator=generator, device=value.device)
            value.copy_((lines[chosen] + LITTLE * noise).to(value.dtype).reshape(value.shape))
