"""A vocoder's last block and head: a depthwise convolution, a norm, two products with a GELU, a learned scale, then
magnitudes and phases whose inverse transforms are windowed and added, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 16
FRAMES = 512
WIDTH = 512
HIDDEN = 1536
LENGTH = 1024
HOP = 256


class Model(nn.Module):
    def __init__(self, width, hidden, length, hop):
        super().__init__()
        self.length, self.hop = length, hop
        self.depthwise = nn.Conv1d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden)
        self.down = nn.Linear(hidden, width)
        self.scale = nn.Parameter(0.1 * torch.ones(width))
        self.head = nn.Linear(width, length + 2)
        self.register_buffer("window", torch.hann_window(length))

    def forward(self, x):
        y = self.norm(self.depthwise(x).transpose(1, 2))
        y = x.transpose(1, 2) + self.scale * self.down(F.gelu(self.up(y)))
        magnitude, phase = self.head(y).chunk(2, -1)
        magnitude = magnitude.exp().clip(max=100.0)
        spectrum = torch.complex(magnitude * phase.cos(), magnitude * phase.sin())
        frames = torch.fft.irfft(spectrum, self.length, dim=-1) * self.window
        count = frames.shape[1]
        size = (count - 1) * self.hop + self.length
        added = F.fold(frames.transpose(1, 2), (1, size), (1, self.length), stride=(1, self.hop))
        squares = self.window.square().expand(1, count, -1).transpose(1, 2)
        weight = F.fold(squares, (1, size), (1, self.length), stride=(1, self.hop))
        return added[:, 0, 0] / weight[:, 0, 0].clamp(min=1e-3)


def get_inputs():
    return [torch.randn(BATCH, WIDTH, FRAMES)]


def get_init_inputs():
    return [WIDTH, HIDDEN, LENGTH, HOP]
