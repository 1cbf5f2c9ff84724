"""The backward pass of layer norm: gradients of input, weight and bias from one reading of both tensors."""

import torch
import torch.nn as nn

ROWS, WIDTH = 16384, 4096


class Model(nn.Module):
    def __init__(self, width, eps=1e-5):
        super().__init__()
        self.weight = nn.Parameter(torch.rand(width))
        self.eps = eps

    def forward(self, gradient, x):
        mean = x.mean(-1, keepdim=True)
        rstd = torch.rsqrt(x.var(-1, unbiased=False, keepdim=True) + self.eps)
        normal = (x - mean) * rstd
        inner = gradient * self.weight
        first = inner.mean(-1, keepdim=True)
        second = (inner * normal).mean(-1, keepdim=True)
        return (inner - first - normal * second) * rstd, (gradient * normal).sum(0), gradient.sum(0)


def get_inputs():
    return [torch.randn(ROWS, WIDTH), torch.randn(ROWS, WIDTH)]


def get_init_inputs():
    return [WIDTH]
