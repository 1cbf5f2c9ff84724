"""A 3x3 median of images, kept only where the pixel is an outlier of its neighbourhood."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, C, S = 8, 3, 768


class Model(nn.Module):
    def __init__(self, k):
        super().__init__()
        self.k = k

    def forward(self, x):
        p = F.pad(x, (1, 1, 1, 1), mode="reflect")
        w = p.unfold(2, 3, 1).unfold(3, 3, 1).flatten(-2)
        med = w.median(-1).values
        mad = (w - med.unsqueeze(-1)).abs().median(-1).values
        return torch.where((x - med).abs() > self.k * (mad + 1e-3), med, x)


def get_inputs():
    return [torch.rand(B, C, S, S)]


def get_init_inputs():
    return [3.0]
