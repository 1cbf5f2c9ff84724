"""Numbers at which roundings to eight bits are told apart, and where versions of torch differ."""

from __future__ import annotations

import torch

FORMATS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}


def floats() -> torch.Tensor:
    """All numbers of sixteen bits, a million patterns of 32, and what lies at and beside the middle of two of eight."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    drawn = torch.randint(-(1 << 31), 1 << 31, (1 << 20,), generator=torch.Generator().manual_seed(3)).to(torch.int32)
    middles = [torch.empty(0)]
    for dtype in FORMATS:
        steps = torch.arange(1 << 7, dtype=torch.uint8).view(getattr(torch, dtype)).float()
        middles.append((steps[1:] + steps[:-1]) / 2)
    at = torch.cat(middles).view(torch.int32)
    beside = torch.cat([at, at + 1, at - 1, at ^ -(1 << 31)])
    return torch.cat([every.view(torch.float16).float(), every.view(torch.bfloat16).float(), drawn.view(torch.float32),
                      beside.view(torch.float32)])  # fmt: skip


def past(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """Where PyTorch before 2.13 makes NaN of a number past the range of e4m3, which it makes 448 of since."""
    older = torch.tensor(1e6).to(getattr(torch, dtype)).isnan()
    return (x.abs() > 464) if older and dtype == "float8_e4m3fn" else torch.zeros_like(x, dtype=torch.bool)
