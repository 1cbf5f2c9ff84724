"""Acoustic wave equation in three dimensions: leapfrog, fourth-order Laplacian, damping at the borders."""

import torch
import torch.nn.functional as F
from torch import nn

SIDE, BATCH = 160, 3


class Model(nn.Module):
    def forward(self, u, before, speed, damp):
        def second(x, dim):
            p = F.pad(x, [2 if i // 2 == 2 - dim else 0 for i in range(6)])
            n = SIDE

            def at(k):
                return p.narrow(dim + 1, k, n)

            return (-at(0) + 16 * at(1) - 30 * at(2) + 16 * at(3) - at(4)) / 12.0

        lap = second(u, 0) + second(u, 1) + second(u, 2)
        new = (2.0 * u - (1.0 - damp) * before + speed * speed * 0.1 * lap) / (1.0 + damp)
        return new, (new * new).sum((1, 2, 3))


def get_inputs():
    u, before = (torch.randn(BATCH, SIDE, SIDE, SIDE) for _ in range(2))
    return [u, before, torch.rand(SIDE, SIDE, SIDE), 0.1 * torch.rand(SIDE, SIDE, SIDE)]


def get_init_inputs():
    return []
