"""A LAMB step over a stack of layers: each layer's trust ratio from two norms, moments updated."""

import torch
import torch.nn as nn

L, N, M = 8, 1024, 1024


class Model(nn.Module):
    def __init__(self, lr, wd):
        super().__init__()
        self.lr, self.wd = lr, wd

    def forward(self, p, g, m, v):
        g = g / g.pow(2).sum().sqrt().clamp_min(1.0)
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        u = (m / 0.19) / (torch.sqrt(v / 0.002) + 1e-6) + self.wd * p
        pn, un = p.flatten(1).norm(dim=1), u.flatten(1).norm(dim=1)
        trust = torch.where((pn > 0) & (un > 0), pn / un, torch.ones_like(pn)).clamp(max=10.0)
        return p - self.lr * trust[:, None, None] * u, m, v


def get_inputs():
    return [torch.randn(L, N, M), torch.randn(L, N, M), torch.randn(L, N, M) * 0.01, torch.rand(L, N, M) * 0.001]


def get_init_inputs():
    return [2e-3, 0.01]
