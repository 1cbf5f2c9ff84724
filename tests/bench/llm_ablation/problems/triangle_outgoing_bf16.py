"""Outgoing edges of a triangle update: gated projections multiplied over the shared node."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, left, left_gate, right, right_gate):
        a, b = left * torch.sigmoid(left_gate), right * torch.sigmoid(right_gate)
        return torch.einsum("bikd,bjkd->bijd", a, b)


def get_inputs():
    return [torch.randn(1, 384, 384, 128).bfloat16() for _ in range(4)]


def get_init_inputs():
    return []
