"""A GRU cell with layer norms on the gates, bf16."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.x = nn.Linear(d, 3 * d).bfloat16()
        self.h = nn.Linear(d, 3 * d).bfloat16()
        self.ln = nn.LayerNorm(d).bfloat16()

    def forward(self, x, h):
        a, b = self.x(x), self.h(h)
        xr, xz, xn = a.chunk(3, -1)
        hr, hz, hn = b.chunk(3, -1)
        r = torch.sigmoid(self.ln(xr + hr))
        z = torch.sigmoid(self.ln(xz + hz))
        n = torch.tanh(xn + r * hn)
        return (1 - z) * n + z * h


def get_inputs():
    return [torch.randn(256, 384).bfloat16(), torch.randn(256, 384).bfloat16()]


def get_init_inputs():
    return [384]
