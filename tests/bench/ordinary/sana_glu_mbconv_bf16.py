"""Sana's feed-forward: a modulated norm, a 1 x 1 expansion with SiLU, a depthwise 3 x 3 convolution, a gated half, a
1 x 1 projection and a gated residual, in bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
SIDE = 32
WIDTH = 192
HIDDEN = 480


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up = nn.Conv2d(width, 2 * hidden, 1)
        self.deep = nn.Conv2d(2 * hidden, 2 * hidden, 3, padding=1, groups=2 * hidden)
        self.down = nn.Conv2d(hidden, width, 1, bias=False)
        self.table = nn.Parameter(torch.randn(3, width) / width**0.5)
        self.side = SIDE
        self.bfloat16()

    def forward(self, x, t):
        shift, scale, gate = (self.table[None] + t.reshape(x.shape[0], 3, -1)).chunk(3, 1)
        y = F.layer_norm(x, x.shape[-1:], eps=1e-6) * (1 + scale) + shift
        y = y.transpose(1, 2).reshape(x.shape[0], -1, self.side, self.side)
        a, b = self.deep(F.silu(self.up(y))).chunk(2, 1)
        y = self.down(a * F.silu(b)).flatten(2).transpose(1, 2)
        return x + gate * y


def get_inputs():
    return [
        torch.randn(BATCH, SIDE * SIDE, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, 3 * WIDTH, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return [WIDTH, HIDDEN]
