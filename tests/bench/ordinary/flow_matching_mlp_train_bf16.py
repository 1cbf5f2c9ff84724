"""A flow's step: a mixture of noise and data by time, an MLP with adaptive norms, the velocity's squared error,
trained, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4096
DATA = 512
WIDTH = 1024
FREQUENCIES = 64


class Model(nn.Module):
    def __init__(self, data, width, frequencies):
        super().__init__()
        b = torch.bfloat16
        self.inp = nn.Linear(data, width, dtype=b)
        self.time = nn.Linear(2 * frequencies, 2 * width, dtype=b)
        self.up = nn.Linear(width, 2 * width, dtype=b)
        self.down = nn.Linear(2 * width, width, dtype=b)
        self.out = nn.Linear(width, data, dtype=b)
        self.register_buffer("rates", torch.exp(torch.linspace(0, 6, frequencies)))

    def forward(self, x, noise, t):
        xt = ((1 - t[:, None]) * noise.float() + t[:, None] * x.float()).to(x.dtype)
        angles = t[:, None] * self.rates
        emb = torch.cat([angles.sin(), angles.cos()], dim=-1).to(x.dtype)
        scale, shift = self.time(F.silu(emb)).chunk(2, dim=-1)
        h = self.inp(xt)
        n = F.layer_norm(h, (h.shape[-1],)) * (1 + scale) + shift
        h = h + self.down(F.gelu(self.up(n), approximate="tanh"))
        v = self.out(F.silu(h)).float()
        return (v - (x.float() - noise.float())).square().mean()


def get_inputs():
    return [
        torch.randn(BATCH, DATA, dtype=torch.bfloat16),
        torch.randn(BATCH, DATA, dtype=torch.bfloat16),
        torch.rand(BATCH),
    ]


def get_init_inputs():
    return [DATA, WIDTH, FREQUENCIES]
