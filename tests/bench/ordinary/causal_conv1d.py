"""Mamba's short causal depthwise convolution with SiLU, bf16."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, D, SEQ, WIDTH = 8, 4096, 2048, 4


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv1d(D, D, WIDTH, groups=D, padding=WIDTH - 1, dtype=torch.bfloat16)

    def forward(self, x):
        return F.silu(self.conv(x)[..., :SEQ])


def get_inputs():
    return [torch.randn(BATCH, D, SEQ, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
