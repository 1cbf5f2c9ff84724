"""A depthwise separable 3-D convolution of a video network with group norm and hard swish, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
CHANNELS = 64
OUT = 128
FRAMES = 16
SIZE = 56


class Model(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.depthwise = nn.Conv3d(channels, channels, 3, padding=1, groups=channels, bias=False)
        self.norm1 = nn.GroupNorm(8, channels)
        self.pointwise = nn.Conv3d(channels, out, 1, bias=False)
        self.norm2 = nn.GroupNorm(8, out)

    def forward(self, x):
        y = F.hardswish(self.norm1(self.depthwise(x)))
        return F.hardswish(self.norm2(self.pointwise(y)))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, FRAMES, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, OUT]
