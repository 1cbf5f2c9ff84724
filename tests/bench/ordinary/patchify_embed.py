"""Latents to patches of 2 x 2, a projection in bf16, learned positions, RMS norm."""

import torch
from torch import nn

BATCH, CHANNELS, SIDE, PATCH, DIM = 16, 16, 128, 2, 1152


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.proj = nn.Linear(CHANNELS * PATCH * PATCH, DIM, dtype=torch.bfloat16)
        self.pos = nn.Parameter(0.02 * torch.randn(1, (SIDE // PATCH) ** 2, DIM, dtype=torch.bfloat16))
        self.weight = nn.Parameter(torch.ones(DIM, dtype=torch.bfloat16))

    def forward(self, x):
        n = SIDE // PATCH
        x = x.view(BATCH, CHANNELS, n, PATCH, n, PATCH).permute(0, 2, 4, 3, 5, 1)
        x = self.proj(x.reshape(BATCH, n * n, PATCH * PATCH * CHANNELS)) + self.pos
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIDE, SIDE, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
