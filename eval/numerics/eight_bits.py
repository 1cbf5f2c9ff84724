"""Floats of eight bits, for which torch has few operators: in_float32 for the others, and rounded again.

Comes in: tensors of any dtype. Goes out: the same numbers in float32, or numbers rounded to eight bits within their
range, so that every version of torch rounds alike (before 2.13 it made NaN of what is past the range of e4m3).
"""

from __future__ import annotations

import math

import torch

EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2)


def in_float32(value: torch.Tensor) -> torch.Tensor:
    """Return floats of eight bits in float32, and other tensors as they are."""
    return value.float() if value.dtype in EIGHT_BITS else value


def narrowed(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers in a dtype; where that has eight bits they stay in range, but for the infinite ones of e5m2."""
    if dtype not in EIGHT_BITS:
        return value.to(dtype)
    most = torch.finfo(dtype).max
    if dtype == torch.float8_e5m2:
        return torch.where(value.abs() == math.inf, value, value.clamp(-most, most)).to(dtype)
    return value.clamp(-most, most).to(dtype)


def as_cast(value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Return numbers as a cast rounds them: past the range of e5m2 they are infinite, past that of e4m3 the largest."""
    return value.to(dtype) if dtype == torch.float8_e5m2 else narrowed(value, dtype)


def comparable(value: torch.Tensor) -> torch.Tensor:
    """Return floats of eight bits in float32, an infinite one of e5m2 as the number that would come next."""
    if value.dtype != torch.float8_e5m2:
        return in_float32(value)
    most = torch.finfo(value.dtype).max
    return value.float().clamp(-(2.0 ** math.ceil(math.log2(most))), 2.0 ** math.ceil(math.log2(most)))


def in_steps(value: torch.Tensor) -> torch.Tensor:
    """Return which number of its eight bits each is, counted from zero in their order; NaN is the one behind all."""
    bits = value.view(torch.uint8).to(torch.int16)
    steps = torch.where(bits < 128, bits, 128 - bits)
    return torch.where(torch.isnan(value.float()), 127, steps)


def chosen(mask: torch.Tensor, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return `torch.where` of two tensors of one dtype, which not every device has for eight bits."""
    if one.dtype not in EIGHT_BITS:
        return torch.where(mask, one, other)
    return torch.where(mask, one.view(torch.uint8), other.view(torch.uint8)).view(one.dtype)
