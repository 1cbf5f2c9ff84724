"""Adaptive group norm of a diffusion UNet in fp16, scale and shift of each channel from the time, SiLU."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, CHANNELS, SIDE, GROUPS = 16, 320, 64, 32


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.GroupNorm(GROUPS, CHANNELS, dtype=torch.float16)

    def forward(self, x, time):
        scale, shift = time[:, :, None, None].chunk(2, 1)
        h = self.norm(x) * (1 + scale) + shift
        return F.silu(h)


def get_inputs():
    return [
        torch.randn(BATCH, CHANNELS, SIDE, SIDE, dtype=torch.float16),
        torch.randn(BATCH, 2 * CHANNELS, dtype=torch.float16),
    ]


def get_init_inputs():
    return []
