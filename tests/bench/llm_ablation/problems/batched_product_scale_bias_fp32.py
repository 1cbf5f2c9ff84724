"""Small batched products in float32, scaled, with a bias for each matrix."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, left, right, bias):
        return torch.relu(torch.bmm(left, right) * 0.125 + bias)


def get_inputs():
    return [torch.randn(512, 128, 128), torch.randn(512, 128, 128), torch.randn(512, 1, 128)]


def get_init_inputs():
    return []
