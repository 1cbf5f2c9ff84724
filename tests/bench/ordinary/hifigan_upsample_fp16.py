"""A stage of HiFi-GAN's vocoder: a transposed convolution of 8, then three residual stacks of dilated convolutions,
averaged, fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
CHANNELS = 256
FRAMES = 1024


class Stack(nn.Module):
    def __init__(self, channels, kernel):
        super().__init__()
        self.first = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, dilation=d, padding=d * (kernel - 1) // 2) for d in (1, 3, 5)
        )
        self.second = nn.ModuleList(nn.Conv1d(channels, channels, kernel, padding=kernel // 2) for _ in range(3))

    def forward(self, x):
        for a, b in zip(self.first, self.second, strict=True):
            y = a(F.leaky_relu(x, 0.1))
            x = x + b(F.leaky_relu(y, 0.1))
        return x


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.up = nn.ConvTranspose1d(channels, channels // 2, 16, stride=8, padding=4)
        self.stacks = nn.ModuleList(Stack(channels // 2, k) for k in (3, 7, 11))
        self.half()

    def forward(self, x):
        x = self.up(F.leaky_relu(x, 0.1))
        return sum(stack(x) for stack in self.stacks) / len(self.stacks)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, FRAMES, dtype=torch.float16)]


def get_init_inputs():
    return [CHANNELS]
