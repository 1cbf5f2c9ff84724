"""A problem file."""

from __future__ import annotations

RELU = """import torch
import torch.nn as nn

class Model(nn.Module):
    def forward(self, x):
        return torch.relu(x)

def get_inputs():
    return [torch.randn(64, 1024)]

def get_init_inputs():
    return []
"""
