"""Cautious AdamW: the step is kept where it agrees with the gradient, scaled; bf16 with fp32 states."""

import torch
import torch.nn as nn

N, M = 4096, 4096


class Model(nn.Module):
    def __init__(self, lr, b1, b2, wd):
        super().__init__()
        self.lr, self.b1, self.b2, self.wd = lr, b1, b2, wd

    def forward(self, p, g, m, v, step):
        gf = g.float()
        m = m + (gf - m) * (1 - self.b1)
        v = v * self.b2 + gf * gf * (1 - self.b2)
        mh = m / (1 - self.b1**step)
        u = mh / ((v / (1 - self.b2**step)).sqrt() + 1e-8)
        keep = (u * gf > 0).float()
        u = u * keep / keep.mean().clamp_min(1e-3)
        return (p.float() * (1 - self.lr * self.wd) - self.lr * u).to(p.dtype), m, v


def get_inputs():
    return [
        torch.randn(N, M, dtype=torch.bfloat16),
        torch.randn(N, M, dtype=torch.bfloat16) * 0.1,
        torch.randn(N, M) * 0.1,
        torch.rand(N, M) * 0.01,
        torch.tensor(17.0),
    ]


def get_init_inputs():
    return [1e-3, 0.9, 0.95, 0.1]
