"""Weight-only int8 linear, a scale by output channel, small batch."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, D, OUT = 16, 8192, 8192


class Model(nn.Module):
    def forward(self, x, weight, scale):
        return F.linear(x, weight.to(x.dtype)) * scale


def get_inputs():
    x = torch.randn(BATCH, D, dtype=torch.bfloat16)
    weight = torch.randint(-128, 128, (OUT, D), dtype=torch.int8)
    return [x, weight, torch.rand(OUT, dtype=torch.bfloat16) * 0.01]


def get_init_inputs():
    return []
