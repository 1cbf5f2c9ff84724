"""Statistics of columns: mean, deviation, skewness and excess kurtosis, and the rows standardised and clipped."""

import torch
from torch import nn

ROWS, COLUMNS = 200000, 96


class Model(nn.Module):
    def forward(self, x):
        mean = x.mean(0)
        c = x - mean
        var = c.pow(2).mean(0)
        std = var.sqrt()
        skew = c.pow(3).mean(0) / (var * std)
        kurt = c.pow(4).mean(0) / (var * var) - 3.0
        return (c / (std + 1e-6)).clamp(-5, 5), mean, std, skew, kurt


def get_inputs():
    return [torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return []
