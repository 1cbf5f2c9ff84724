"""Kinds of floating-point inputs on which numbers are checked; runs in the reference worker.

Comes in: one input as the problem's own `get_inputs` made it. Goes out: a tensor of the same form with another
kind of content. Only floating-point inputs are changed; parameters are moved or rotated in every draw. What is made of
noise alone is `shaped_noise.py`, whole numbers `integer_draws.py`, what is arranged `arranged_inputs.py`, several at
once `inputs_together.py`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from rag_kernels.eval.numerics.arranged_inputs import lines_of
from rag_kernels.eval.numerics.balanced_inputs import any_size
from rag_kernels.eval.numerics.shaped_noise import FEW, SHAPED, burst, clusters, other_nans, powers_of_two, with_zeros
from rag_kernels.eval.traits.input_kinds import (
    AGREEING,
    ANY_SIZE,
    BALANCED,
    BESIDE,
    BURST,
    CLUSTERS,
    DISORDER,
    ENDS,
    FAR_ANGLES,
    FAR_BURST,
    FAR_PARAMETERS,
    FITTED,
    HIDDEN,
    INTEGER_KINDS,
    IRREGULAR,
    KEPT,
    LARGE_PARAMETERS,
    LATE,
    LINES,
    MASKED,
    MASKED_SPIKES,
    NEARLY,
    NEXT_TO_LINES,
    NON_FINITE,
    ONE_END,
    ORTHONORMAL,
    POWERS,
    PROBES,
    RAISED,
    SAME_SUMS,
    SEARCHED,
    SINGLES,
    SIZES,
    SMALL_WHOLE,
    TWICE,
    UNEVEN,
    WAYS,
    WHOLE,
)

LARGEST = {torch.float16: 1e3, torch.float8_e4m3fn: 1e2, torch.float8_e5m2: 1e4}  # large numbers
MOST_POWER = {torch.float64: 307.0, torch.float16: 4.0}  # of ten
LOUD = {torch.float16: 1e3}  # of a burst, in which what is larger overflows
NEAR_END = 0.02  # of its range: as near to a whole number is an input to that end of it
MANY = 16  # lines of a parameter, of which three may be lost
# Kinds that are no new content of one input: it stays, or is arranged, or drawn with others.
MADE_ELSEWHERE = frozenset(
    {
        "own",
        *AGREEING,
        *HIDDEN,
        *FITTED,
        NEXT_TO_LINES,
        ENDS,
        IRREGULAR,
        KEPT,
        DISORDER,
        NEARLY,
        UNEVEN,
        SAME_SUMS,
        *FAR_PARAMETERS,
        *LINES,
        *TWICE,
        *PROBES,
        *INTEGER_KINDS,
        *SEARCHED,
        *BALANCED,
        *BESIDE,
        *SINGLES,
    }
)


def at_constants(
    own: torch.Tensor, constants: Sequence[float], generator: torch.Generator, *, alone: bool = False
) -> torch.Tensor:
    """Return an input of which half the elements lie on a constant of the problem, or next to one.

    Of either sign, and on a few of its multiples, where what divides by it and rounds has its steps; or all of them on
    it `alone`, or beside it.
    """
    if not own.is_floating_point() or own.dim() == 0 or own.numel() == 0:
        return own
    numbers = {n * c for c in constants for n in ((1,) if alone else (1, -1, 2, 3, 5, 7))}
    zeros = [] if alone and numbers else [0.0, -0.0]
    exact = torch.tensor([*zeros, *sorted(numbers)], device=own.device).to(own.dtype)
    beside = [torch.nextafter(exact, torch.full_like(exact, to)) for to in (-math.inf, math.inf)]
    values = torch.cat([exact, exact, *beside])  # as often on one as beside it
    values = values[torch.isfinite(values)]
    chosen = values[torch.randint(0, len(values), own.shape, generator=generator, device=own.device)]
    normal = torch.randn(own.shape, generator=generator, device=own.device).to(own.dtype)
    share = 1.0 if alone else 0.5
    return torch.where(torch.rand(own.shape, generator=generator, device=own.device) < share, chosen, normal)


def ends_of(own: torch.Tensor) -> tuple[float, ...]:
    """Return between which ends an input lies, as probabilities, cosines and what is drawn from one to ten do; none
    where it does not.
    """
    if not own.is_floating_point() or own.dim() == 0 or own.numel() < FEW:
        return ()
    least, most = float(own.min()), float(own.max())
    if least >= -1 and most <= 1:
        return (0.0 if least >= 0 else -1.0, 1.0)
    near = NEAR_END * (most - least)
    if not math.isfinite(near) or least - math.floor(least) > near or math.ceil(most) - most > near:
        return ()
    return (float(math.floor(least)), float(math.ceil(most)))


def at_ends(own: torch.Tensor, which: str, generator: torch.Generator) -> torch.Tensor:
    """Return an input half of whose elements lie on an end of its range, a few of them beside it; `which` may be one of
    `ONE_END`.
    """
    if not (ends := ends_of(own)):
        return own
    drawn, few = torch.rand((2, *own.shape), generator=generator, device=own.device)
    step = torch.finfo(own.dtype).eps * max(1.0, *map(abs, ends))
    beside = ends[0] + step, ends[1] - step
    low, high = (torch.where(few < 0.1, b, end).to(own.dtype) for b, end in zip(beside, ends, strict=True))
    value = torch.where(drawn < 0.25, low, own) if which != ONE_END[1] else own
    return torch.where(drawn > 0.75, high, value) if which != ONE_END[0] else value


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
    if kind in MADE_ELSEWHERE or not own.is_floating_point() or own.dim() == 0 or own.numel() == 0:
        return own
    if kind == "faint":  # of its own sign, so that roots and logarithms take it
        power = -18 * torch.rand(own.shape, generator=generator, device=own.device)
        if own.dim() > 1:  # every other row as a whole, half of these where squares are next to the least numbers
            lines_of(power)[::2] = lines_of(power)[::2, :1].clone()
            lines_of(power)[::4] = -18.3 + lines_of(power)[::4] / 60
        return (own * 10**power).to(own.dtype)
    if kind in SIZES:  # of its own sign
        most = MOST_POWER.get(dtype or own.dtype, 37.0)
        return any_size(own, generator, least=-most, most=0.8 * most if kind == ANY_SIZE else -most / 2)
    normal = torch.randn(own.shape, generator=generator, device=own.device)
    if kind == WHOLE:  # of its own sign
        size = normal.abs().mul(40).ceil()
        return (size * normal.sign() if bool((own < 0).any()) else size).to(own.dtype)
    if kind == CLUSTERS:
        drawn = clusters(normal, generator, several=first)
    elif kind == BURST:
        drawn = burst(normal, generator, LOUD.get(dtype or own.dtype, 1e4))
    elif kind == FAR_BURST:
        drawn = burst(normal, generator, LOUD.get(dtype or own.dtype, 1e16))
    elif kind == "large" and (greatest := LARGEST.get(dtype or own.dtype)):  # in which what is larger is infinite
        drawn = greatest * normal
    else:
        drawn = SHAPED[kind](normal, generator)
    least = max(torch.finfo(own.dtype).min, torch.finfo(drawn.dtype).min)
    value = (drawn.clamp(min=least) if kind in (MASKED, MASKED_SPIKES) else drawn).to(own.dtype)
    return other_nans(value, generator) if kind == NON_FINITE else value


def parameter_of(kind: str, value: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a parameter such that what is exact of inputs of this kind is exact of both; as it is for other kinds."""
    if kind == POWERS:
        return powers_of_two(value, generator, throughout=True)
    if kind in (LATE, *ORTHONORMAL, *WAYS):
        return redraw(kind, value, generator)
    return redraw(SMALL_WHOLE, value, generator) if kind in (SMALL_WHOLE, FAR_ANGLES) else value


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


def spoiled(x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Return a parameter of which a quarter are zero and, where there are many, three are not finite."""
    x = with_zeros(x, generator)
    if x.is_floating_point() and x.dim() and x.shape[0] >= MANY:
        flat = x.reshape(-1).clone()
        at = torch.randint(0, flat.numel(), (3,), generator=generator, device=x.device)
        flat[at] = torch.tensor([math.nan, math.inf, -math.inf], dtype=x.dtype, device=x.device)
        x = flat.reshape(x.shape)
    return x


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
