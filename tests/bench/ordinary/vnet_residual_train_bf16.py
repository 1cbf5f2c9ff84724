"""A residual block of V-Net on volumes: two 3-d convolutions with group norm and PReLU, the input added, the strided
convolution down, trained, bf16."""

import torch
import torch.nn as nn

BATCH = 2
CHANNELS = 32
SIZE = 64


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.c1 = nn.Conv3d(channels, channels, 3, padding=1)
        self.n1 = nn.GroupNorm(8, channels)
        self.p1 = nn.PReLU(channels)
        self.c2 = nn.Conv3d(channels, channels, 3, padding=1)
        self.n2 = nn.GroupNorm(8, channels)
        self.p2 = nn.PReLU(channels)
        self.down = nn.Conv3d(channels, 2 * channels, 2, stride=2)
        self.bfloat16()

    def forward(self, x):
        y = self.p1(self.n1(self.c1(x)))
        y = self.n2(self.c2(y))
        return self.down(self.p2(y + x))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE, SIZE, dtype=torch.bfloat16)]


def get_init_inputs():
    return [CHANNELS]
