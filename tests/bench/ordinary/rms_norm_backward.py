"""Gradients of Gemma's RMS norm (weight plus one) in bf16, of the input and of the weight."""

import torch
from torch import nn

ROWS, DIM = 8192, 3072


class Model(nn.Module):
    def forward(self, grad, x, weight):
        g, h = grad.float(), x.float()
        r = torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        n = h * r
        gw = g * (1.0 + weight.float())
        dx = r * (gw - n * (gw * n).mean(-1, keepdim=True))
        return dx.to(x.dtype), (g * n).sum(0)


def get_inputs():
    two = [torch.randn(ROWS, DIM, dtype=torch.bfloat16) for _ in range(2)]
    return [*two, 0.1 * torch.randn(DIM, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
