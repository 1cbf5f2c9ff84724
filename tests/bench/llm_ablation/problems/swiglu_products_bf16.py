"""Both products of a SwiGLU layer and the gate between them."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias=False).bfloat16()
        self.up = nn.Linear(width, hidden, bias=False).bfloat16()

    def forward(self, x):
        return F.silu(self.gate(x)) * self.up(x)


def get_inputs():
    return [torch.randn(4096, 2048).bfloat16()]


def get_init_inputs():
    return [2048, 5632]
