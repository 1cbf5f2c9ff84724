"""MeanFlow: an average velocity's network with two times embedded, its derivative along the flow by a forward-mode
product, a target without gradient, an adaptively weighted squared error, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4096
WIDTH = 256
HIDDEN = 1024


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.times = nn.Linear(64, hidden)
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.third = nn.Linear(hidden, width)
        self.register_buffer("waves", torch.exp(torch.linspace(0, 4, 16)))

    def embed(self, t):
        angle = t[:, None] * self.waves
        return torch.cat((angle.sin(), angle.cos()), -1)

    def network(self, z, r, t):
        c = self.times(torch.cat((self.embed(t), self.embed(t - r)), -1))
        h = F.silu(self.first(z) + c)
        h = F.silu(self.second(h) + c)
        return self.third(h)

    def forward(self, x, noise, r, t):
        z = (1 - t[:, None]) * x + t[:, None] * noise
        v = noise - x
        u, along = torch.func.jvp(self.network, (z, r, t), (v, torch.zeros_like(r), torch.ones_like(t)))
        target = (v - (t - r)[:, None] * along).detach()
        error = (u - target).square().mean(-1)
        weight = 1 / (error.detach() + 1e-3)
        return (weight * error).mean()


def get_inputs():
    t = torch.rand(BATCH)
    return [torch.randn(BATCH, WIDTH), torch.randn(BATCH, WIDTH), t * torch.rand(BATCH), t]


def get_init_inputs():
    return [WIDTH, HIDDEN]
