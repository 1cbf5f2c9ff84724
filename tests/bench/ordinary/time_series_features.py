"""Rolling mean, deviation and z-score over 32 steps, exponential averages, drawdown."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, price):
        ret = torch.diff(torch.log(price), dim=-1)
        win = ret.unfold(-1, 32, 1)
        z = (ret[:, 31:] - win.mean(-1)) / (win.std(-1) + 1e-6)
        peak = torch.cummax(price, -1).values
        draw = (price / peak - 1).amin(-1)
        up = (ret > 0).float().mean(-1)
        return z, draw, up


def get_inputs():
    return [torch.rand(256, 1024) + 0.5]


def get_init_inputs():
    return []
