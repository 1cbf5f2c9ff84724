"""PointNet++: grouped neighbours beside their centre, three shared layers, maximum. TF32 allowed."""

from itertools import pairwise

import torch
import torch.nn as nn
import torch.nn.functional as F

B, N, M, K, C, W = 12, 4096, 1024, 32, 93, (64, 64, 128)


class Model(nn.Module):
    def __init__(self, c, widths):
        super().__init__()
        sizes = (c + 3, *widths)
        self.convs = nn.ModuleList(nn.Conv2d(a, b, 1, bias=False) for a, b in pairwise(sizes))
        self.norms = nn.ModuleList(nn.BatchNorm2d(b) for b in widths)
        self.eval()

    def forward(self, xyz, features, centres, groups):
        b, m, k = groups.shape
        flat = groups.reshape(b, -1, 1)
        near = xyz.gather(1, flat.expand(-1, -1, 3)).view(b, m, k, 3)
        mid = xyz.gather(1, centres.unsqueeze(-1).expand(-1, -1, 3))
        near = near - mid.unsqueeze(2)
        f = features.gather(1, flat.expand(-1, -1, features.shape[-1])).view(b, m, k, -1)
        h = torch.cat((near, f), -1).permute(0, 3, 1, 2)
        for conv, norm in zip(self.convs, self.norms, strict=True):
            h = F.relu(norm(conv(h)))
        return h.amax(-1)


def get_inputs():
    return [
        torch.randn(B, N, 3),
        torch.randn(B, N, C),
        torch.randint(0, N, (B, M)),
        torch.randint(0, N, (B, M, K)),
    ]


def get_init_inputs():
    return [C, W]
