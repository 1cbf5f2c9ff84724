"""ConvNeXt's block: depthwise 7x7, layer norm over channels, MLP with GELU, layer scale, residual; TF32 allowed."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, C, SIZE = 16, 192, 56


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.dw = nn.Conv2d(C, C, 7, padding=3, groups=C)
        self.norm = nn.LayerNorm(C, eps=1e-6)
        self.up = nn.Linear(C, 4 * C)
        self.down = nn.Linear(4 * C, C)
        self.gamma = nn.Parameter(torch.full((C,), 1e-2))

    def forward(self, x):
        y = self.dw(x).permute(0, 2, 3, 1)
        y = self.down(F.gelu(self.up(self.norm(y)))) * self.gamma
        return x + y.permute(0, 3, 1, 2)


def get_inputs():
    return [torch.randn(BATCH, C, SIZE, SIZE)]


def get_init_inputs():
    return []
