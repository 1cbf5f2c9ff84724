"""Experts as batched products in bf16: gate, up, SwiGLU, down, and the router's weights."""

import torch
from torch import nn

EXPERTS, ROWS, DIM, HIDDEN = 16, 256, 1024, 1792


class Model(nn.Module):
    def forward(self, x, gate, up, down, weight):
        h = torch.bmm(x, gate)
        h = h * torch.sigmoid(h) * torch.bmm(x, up)
        return torch.bmm(h, down) * weight[..., None]


def get_inputs():
    x = torch.randn(EXPERTS, ROWS, DIM, dtype=torch.bfloat16)
    two = [torch.randn(EXPERTS, DIM, HIDDEN, dtype=torch.bfloat16) * DIM**-0.5 for _ in range(2)]
    down = torch.randn(EXPERTS, HIDDEN, DIM, dtype=torch.bfloat16) * HIDDEN**-0.5
    return [x, *two, down, torch.rand(EXPERTS, ROWS, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
