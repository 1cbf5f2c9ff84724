"""Batch norm of training with the running statistics it returns, then leaky ReLU."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, C, SIZE = 64, 128, 56


class Model(nn.Module):
    def forward(self, x, weight, bias, running_mean, running_var):
        var, mean = torch.var_mean(x, dim=(0, 2, 3), unbiased=False)
        n = x.numel() / x.shape[1]
        y = (x - mean[None, :, None, None]) * torch.rsqrt(var + 1e-5)[None, :, None, None]
        y = F.leaky_relu(y * weight[None, :, None, None] + bias[None, :, None, None], 0.1)
        return y, torch.lerp(running_mean, mean, 0.1), torch.lerp(running_var, var * n / (n - 1), 0.1)


def get_inputs():
    x = torch.randn(BATCH, C, SIZE, SIZE)
    return [x, torch.rand(C), torch.randn(C), torch.randn(C), torch.rand(C)]


def get_init_inputs():
    return []
