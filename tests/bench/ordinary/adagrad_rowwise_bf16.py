"""Row-wise Adagrad of an embedding in bf16, the table and its state changed in place."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, rows, dim):
        super().__init__()
        self.register_buffer("table", torch.randn(rows, dim).bfloat16())
        self.register_buffer("state", torch.zeros(rows))

    def forward(self, grad):
        g = grad.float()
        self.state.add_(g.square().mean(dim=1))
        self.table.sub_((0.05 * g / (self.state.sqrt() + 1e-8)[:, None]).bfloat16())
        return self.table, self.state


def get_inputs():
    return [torch.randn(8192, 128).bfloat16()]


def get_init_inputs():
    return [8192, 128]
