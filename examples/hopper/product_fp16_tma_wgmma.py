"""A square half-precision product: tensor cores alone decide."""

import torch
import torch.nn as nn

SIZE = 4096


class Model(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(size, size, dtype=torch.float16) / size**0.5)

    def forward(self, x):
        return torch.matmul(x, self.weight)


def get_inputs():
    return [torch.randn(SIZE, SIZE).half()]


def get_init_inputs():
    return [SIZE]
