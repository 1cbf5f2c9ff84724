"""Causal depthwise convolution of width 4 with bias and SiLU, as in a state-space layer."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv = nn.Conv1d(channels, channels, 4, groups=channels, padding=3).bfloat16()

    def forward(self, x):
        return F.silu(self.conv(x)[..., : x.shape[-1]])


def get_inputs():
    return [torch.randn(8, 4096, 2048).bfloat16()]


def get_init_inputs():
    return [4096]
