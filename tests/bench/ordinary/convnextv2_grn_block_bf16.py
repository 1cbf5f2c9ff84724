"""ConvNeXt-V2 block: depthwise 7x7, layer norm of channels, pointwise with GELU, global response norm, pointwise."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, C, S = 16, 192, 56


class Model(nn.Module):
    def __init__(self, c):
        super().__init__()
        self.dw = nn.Conv2d(c, c, 7, padding=3, groups=c)
        self.norm = nn.LayerNorm(c, eps=1e-6)
        self.pw1, self.pw2 = nn.Linear(c, 4 * c), nn.Linear(4 * c, c)
        self.gamma = nn.Parameter(torch.randn(1, 1, 1, 4 * c) * 0.1)
        self.beta = nn.Parameter(torch.randn(1, 1, 1, 4 * c) * 0.1)
        self.to(torch.bfloat16)

    def forward(self, x):
        y = self.norm(self.dw(x).permute(0, 2, 3, 1))
        y = F.gelu(self.pw1(y))
        g = torch.linalg.vector_norm(y, dim=(1, 2), keepdim=True)
        n = g / (g.mean(dim=-1, keepdim=True) + 1e-6)
        y = self.gamma * (y * n) + self.beta + y
        return x + self.pw2(y).permute(0, 3, 1, 2)


def get_inputs():
    return [torch.randn(B, C, S, S, dtype=torch.bfloat16)]


def get_init_inputs():
    return [C]
