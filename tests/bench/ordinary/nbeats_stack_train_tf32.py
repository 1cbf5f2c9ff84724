"""N-BEATS: a trend and a seasonal block, each with a backcast that is taken away, a forecast that is added, the
symmetric error, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2048
PAST = 168
AHEAD = 24
WIDTH = 512


class Block(nn.Module):
    def __init__(self, past, ahead, width, kind):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(past if i == 0 else width, width) for i in range(3)])
        t = torch.arange(past + ahead) / (past + ahead)
        if kind == "trend":
            basis = torch.stack([t**i for i in range(4)])
        else:
            basis = torch.cat([torch.stack([f(6.2832 * i * t) for i in range(1, 9)]) for f in (torch.cos, torch.sin)])
        self.register_buffer("basis", basis)
        self.theta = nn.Linear(width, basis.shape[0])

    def forward(self, x):
        h = x
        for layer in self.layers:
            h = F.relu(layer(h))
        return self.theta(h) @ self.basis


class Model(nn.Module):
    def __init__(self, past, ahead, width):
        super().__init__()
        self.past = past
        self.blocks = nn.ModuleList([Block(past, ahead, width, k) for k in ("trend", "season")])

    def forward(self, x, target):
        level = x.abs().mean(-1, keepdim=True) + 1e-3
        rest, forecast = x / level, 0.0
        for block in self.blocks:
            both = block(rest)
            rest = rest - both[:, : self.past]
            forecast = forecast + both[:, self.past :]
        forecast = forecast * level
        return (2 * (forecast - target).abs() / (forecast.abs() + target.abs() + 1.0)).mean()


def get_inputs():
    return [torch.randn(BATCH, PAST) + 2, torch.randn(BATCH, AHEAD) + 2]


def get_init_inputs():
    return [PAST, AHEAD, WIDTH]
