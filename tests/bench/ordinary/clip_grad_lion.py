"""Global gradient norm over several tensors, clipping, and Lion's sign update."""

import torch
from torch import nn

SHAPES = [(4096, 4096), (11008, 1024), (32000, 256)]


class Model(nn.Module):
    def forward(self, p0, p1, p2, g0, g1, g2, m0, m1, m2):
        grads = [g0, g1, g2]
        norm = torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(g) for g in grads]))
        clip = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
        out = []
        for p, g, m in zip([p0, p1, p2], grads, [m0, m1, m2], strict=True):
            g = g * clip
            update = torch.sign(0.9 * m + 0.1 * g)
            out += [p * (1 - 1e-4) - 1e-3 * update, 0.99 * m + 0.01 * g]
        return (norm, *out)


def get_inputs():
    return [torch.randn(s) for _ in range(3) for s in SHAPES]


def get_init_inputs():
    return []
