"""Conformer's convolutions: norm, pointwise, GLU, depthwise of 31, batch norm, swish, pointwise. TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, D, K = 16, 1024, 512, 31


class Model(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.norm = nn.LayerNorm(d)
        self.p1, self.p2 = nn.Conv1d(d, 2 * d, 1), nn.Conv1d(d, d, 1)
        self.dw = nn.Conv1d(d, d, k, padding=k // 2, groups=d)
        self.bn = nn.BatchNorm1d(d)
        self.eval()

    def forward(self, x):
        h = self.norm(x).transpose(1, 2)
        h = F.glu(self.p1(h), dim=1)
        h = F.silu(self.bn(self.dw(h)))
        return x + self.p2(h).transpose(1, 2)


def get_inputs():
    return [torch.randn(B, T, D)]


def get_init_inputs():
    return [D, K]
