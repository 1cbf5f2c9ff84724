"""GEGLU: one half of the columns gated by the exact GELU of the other."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, x):
        value, gate = x.chunk(2, dim=-1)
        return value * F.gelu(gate)


def get_inputs():
    return [torch.randn(16384, 2 * 5120).half()]


def get_init_inputs():
    return []
