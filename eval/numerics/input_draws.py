"""Kinds of inputs on which numbers are checked; runs in the reference worker.

Comes in: one input as the problem's own `get_inputs` made it. Goes out: a tensor of the same form with another
kind of content. Only floating-point inputs are changed; parameters are moved or rotated in every draw.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch

from rag_kernels.eval.input_kinds import NON_FINITE, WIDE
from rag_kernels.eval.records import IndexBound

MAX_ZERO_SHARE = 0.2
WIDEST = 1 << 20  # beyond 16 bits; sums and products of a few stay within 64, and in fp64 exact


def is_structured(values: torch.Tensor) -> bool:
    """Return True for inputs whose arrangement means something: mostly zeros, symmetric, or sorted integers."""
    if values.numel() < 2:
        return True
    sample = values.reshape(-1)[:: max(1, values.numel() // 100_000)]
    if values.is_floating_point() and float((sample == 0).float().mean()) > MAX_ZERO_SHARE:
        return True
    whole = not values.is_floating_point() and not values.is_complex() and values.dtype != torch.bool
    if whole and values.dim() == 1 and bool((values.long().diff() >= 0).all()):
        return True
    if values.dim() < 2 or values.shape[-1] != values.shape[-2] or values.shape[-1] < 2:
        return False
    corner = values.reshape(-1, *values.shape[-2:])[0, :256, :256]
    corner = corner.long() if whole else corner
    same = (corner == corner.mT) | ((corner != corner) & (corner.mT != corner.mT))
    return bool(same.all())


def redraw(kind: str, own: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return an input of this kind, of the same shape, dtype and device as `own`."""
    if kind in {"own", "probe", WIDE} or not own.is_floating_point() or own.dim() == 0 or own.numel() == 0:
        return own
    normal = torch.randn(own.shape, generator=generator, device=own.device)
    return _KINDS[kind](normal, generator).to(own.dtype)


def widened(own: torch.Tensor, bound: IndexBound | None, generator: torch.Generator) -> torch.Tensor:
    """Return an integer input of other values: of either sign and beyond 16 bits, or within what they index."""
    info = torch.iinfo(own.dtype)
    low, high = max(info.min, -WIDEST), min(info.max, WIDEST)
    if bound is not None:
        signed = bound.wraps and bool((own < 0).any())  # from the end, where the problem counts from there too
        low, high = max(info.min, -bound.high if signed else bound.low), min(info.max, bound.high - 1)
    drawn = torch.randint(low, high + 1, own.shape, generator=generator, device=own.device)
    return drawn.to(own.dtype)


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
    """Return one element in `every`, or `least` of them, lie between 100 and 200, of either sign.

    Exp of them overflows.
    """
    flat = x.reshape(-1).clone()
    count = max(min(least, flat.numel()), flat.numel() // every)
    at = torch.randint(0, flat.numel(), (count,), generator=generator, device=x.device)
    size = 100 + 100 * torch.rand(count, generator=generator, device=x.device)
    flat[at] = size * torch.randn(count, generator=generator, device=x.device).sign()
    return flat.reshape(x.shape)


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


def _sparse(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Draw values of which nine in ten are zero."""
    return x * (torch.rand(x.shape, generator=generator, device=x.device) < 0.1)


def _non_finite(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a few elements are NaN, infinity, or infinity with a minus."""
    flat = x.reshape(-1).clone()
    for value in (math.nan, math.inf, -math.inf):
        at = torch.randint(0, flat.numel(), (1 + flat.numel() // 5000,), generator=generator, device=x.device)
        flat[at] = value
    return flat.reshape(x.shape)


_KINDS: dict[str, Callable[[torch.Tensor, torch.Generator], torch.Tensor]] = {
    "normal": lambda x, g: x,
    "spread": _spread,
    "shifted": lambda x, g: x + 3.0,
    "far": lambda x, g: x + 100.0,
    "spikes": _spikes,
    "rare spikes": lambda x, g: _spikes(0.1 * x, g, every=2000, least=12),  # a sample of the others shows none
    "constant rows": _constant_rows,
    "ties": lambda x, g: (x * 2).round(),
    "large": lambda x, g: x * 1e3,
    "tiny": lambda x, g: x * 1e-40,
    "small": lambda x, g: x * 1e-2,
    "negative": lambda x, g: -x.abs(),
    "positive": lambda x, g: x.abs(),
    "one spike": _one_spike,
    "sparse": _sparse,
    NON_FINITE: _non_finite,
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
