"""Columns of a tall matrix brought to mean 0 and variance 1, as batch norm does in training."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, x):
        variance, mean = torch.var_mean(x, dim=0, unbiased=False)
        return (x - mean) * torch.rsqrt(variance + 1e-5)


def get_inputs():
    return [torch.randn(65536, 1024)]


def get_init_inputs():
    return []
