"""Sixteen tokens against int8 weights with a scale for each row: the weights' bytes decide."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS, WIDTH, HIDDEN = 16, 8192, 8192


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (hidden, width), dtype=torch.int8))
        self.register_buffer("scale", torch.rand(hidden, 1).bfloat16() / 1000)

    def forward(self, x):
        return F.linear(x, self.weight.to(x.dtype) * self.scale)


def get_inputs():
    return [torch.randn(TOKENS, WIDTH).bfloat16()]


def get_init_inputs():
    return [WIDTH, HIDDEN]
