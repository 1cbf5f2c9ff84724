"""A forecaster's head: gated residual network, seven quantiles by a cumulative softplus, and the pinball loss with
weights, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 1024
HORIZON = 24
WIDTH = 256
QUANTILES = [0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 0.98]


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc1 = nn.Linear(width, width)
        self.fc2 = nn.Linear(width, width)
        self.glu = nn.Linear(width, 2 * width)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, len(QUANTILES))
        self.register_buffer("q", torch.tensor(QUANTILES))

    def forward(self, x, target, weight):
        y = self.fc2(F.elu(self.fc1(x)))
        y = self.norm(x + F.glu(self.glu(y), dim=-1))
        raw = self.head(y)
        quantiles = raw[..., :1] + torch.cat(
            [torch.zeros_like(raw[..., :1]), F.softplus(raw[..., 1:]).cumsum(dim=-1)], dim=-1
        )
        error = target.unsqueeze(-1) - quantiles
        pinball = torch.maximum(self.q * error, (self.q - 1) * error).mean(dim=-1)
        return (pinball * weight).sum() / weight.sum()


def get_inputs():
    return [torch.randn(BATCH, HORIZON, WIDTH), torch.randn(BATCH, HORIZON), torch.rand(BATCH, HORIZON) + 0.1]


def get_init_inputs():
    return [WIDTH]
