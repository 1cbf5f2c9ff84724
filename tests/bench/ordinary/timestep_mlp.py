"""Sinusoidal embedding of time steps and guidance through an MLP with SiLU (TF32 allowed)."""

import math

import torch
import torch.nn.functional as F
from torch import nn

BATCH, DIM, HIDDEN = 8192, 320, 1280


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(DIM, HIDDEN), nn.Linear(HIDDEN, HIDDEN), nn.Linear(DIM, HIDDEN, bias=False)

    def embed(self, t):
        half = DIM // 2
        freq = torch.exp(-math.log(10000.0) * torch.arange(half, device=t.device, dtype=torch.float32) / half)
        angle = t[:, None] * freq
        return torch.cat([angle.cos(), angle.sin()], -1)

    def forward(self, t, guidance):
        h = self.a(self.embed(1000.0 * t)) + self.c(self.embed(guidance))
        return self.b(F.silu(h))


def get_inputs():
    return [torch.rand(BATCH), 1 + 6 * torch.rand(BATCH)]


def get_init_inputs():
    return []
