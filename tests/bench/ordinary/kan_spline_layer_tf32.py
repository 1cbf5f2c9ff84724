"""A Kolmogorov-Arnold layer: cubic B-splines of each input by the recursion over a grid, and a SiLU base, TF32
allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8192
FAN_IN = 256
FAN_OUT = 256
GRID = 8
ORDER = 3


class Model(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        h = 2.0 / GRID
        knots = torch.arange(-ORDER, GRID + ORDER + 1) * h - 1
        self.register_buffer("grid", knots.expand(fan_in, -1).contiguous())
        self.base = nn.Parameter(torch.randn(fan_out, fan_in) / fan_in**0.5)
        self.spline = nn.Parameter(torch.randn(fan_out, fan_in, GRID + ORDER) * 0.05)
        self.scaler = nn.Parameter(torch.rand(fan_out, fan_in))

    def forward(self, x):
        g, u = self.grid, x.unsqueeze(-1)
        bases = ((u >= g[:, :-1]) & (u < g[:, 1:])).to(x.dtype)
        for k in range(1, ORDER + 1):
            left = (u - g[:, : -(k + 1)]) / (g[:, k:-1] - g[:, : -(k + 1)]) * bases[:, :, :-1]
            right = (g[:, k + 1 :] - u) / (g[:, k + 1 :] - g[:, 1:-k]) * bases[:, :, 1:]
            bases = left + right
        weight = self.spline * self.scaler.unsqueeze(-1)
        return F.linear(F.silu(x), self.base) + F.linear(bases.flatten(1), weight.flatten(1))


def get_inputs():
    return [torch.rand(BATCH, FAN_IN) * 1.8 - 0.9]


def get_init_inputs():
    return [FAN_IN, FAN_OUT]
