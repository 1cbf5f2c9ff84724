"""Adam-mini: one second moment for each head's block of rows, momentum in bf16, decoupled decay."""

import torch
from torch import nn

HEADS, HEAD, DIM = 64, 128, 4096


class Model(nn.Module):
    def forward(self, p, g, m, v, step):
        g = g.float()
        v = 0.95 * v + 0.05 * g.pow(2).mean((1, 2))
        m = 0.9 * m.float() + 0.1 * g
        fix1, fix2 = 1 - 0.9**step, 1 - 0.95**step
        size = 3e-4 / (torch.sqrt(v / fix2) + 1e-8) / fix1
        p = p * (1 - 3e-5) - size[:, None, None] * m
        return p, m.to(torch.bfloat16), v, p.to(torch.bfloat16)


def get_inputs():
    p = torch.randn(HEADS, HEAD, DIM)
    g, m = (torch.randn(HEADS, HEAD, DIM, dtype=torch.bfloat16) for _ in range(2))
    return [p, g, m, torch.rand(HEADS), torch.tensor(100.0)]


def get_init_inputs():
    return []
