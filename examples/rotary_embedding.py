"""Rotary position embedding of attention heads, halves rotated."""

import torch
import torch.nn as nn

BATCH = 2
HEADS = 8
SEQUENCE = 1024
HEAD_SIZE = 128


class Model(nn.Module):
    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        left, right = x.chunk(2, dim=-1)
        rotated = torch.cat((-right, left), dim=-1)
        return x * cos + rotated * sin


def get_inputs():
    angle = 6.2831853 * torch.rand(SEQUENCE, HEAD_SIZE)
    return [torch.randn(BATCH, HEADS, SEQUENCE, HEAD_SIZE), torch.cos(angle), torch.sin(angle)]


def get_init_inputs():
    return []
