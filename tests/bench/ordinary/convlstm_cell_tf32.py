"""A ConvLSTM cell over eight radar frames, TF32 allowed."""

import torch
import torch.nn as nn

BATCH = 8
FRAMES = 8
CHANNELS = 16
HIDDEN = 64
SIZE = 64


class Model(nn.Module):
    def __init__(self, channels, hidden):
        super().__init__()
        self.hidden = hidden
        self.conv = nn.Conv2d(channels + hidden, 4 * hidden, 3, padding=1)

    def forward(self, frames):
        b, t, _, height, width = frames.shape
        h = frames.new_zeros(b, self.hidden, height, width)
        c = torch.zeros_like(h)
        out = []
        for step in range(t):
            i, f, o, g = self.conv(torch.cat([frames[:, step], h], dim=1)).chunk(4, dim=1)
            c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
            out.append(h)
        return torch.stack(out, dim=1), c


def get_inputs():
    return [torch.randn(BATCH, FRAMES, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, HIDDEN]
