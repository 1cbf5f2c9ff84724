"""The first layers of a speech encoder: strided convolutions over raw audio, a group norm of each channel, GELU,
fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
SAMPLES = 64000
CHANNELS = 256


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        h = torch.float16
        self.c0 = nn.Conv1d(1, channels, 10, stride=5, bias=False, dtype=h)
        self.n0 = nn.GroupNorm(channels, channels, dtype=h)
        self.c1 = nn.Conv1d(channels, channels, 3, stride=2, bias=False, dtype=h)
        self.c2 = nn.Conv1d(channels, channels, 3, stride=2, bias=False, dtype=h)
        self.ln = nn.LayerNorm(channels, dtype=h)

    def forward(self, audio):
        audio = (audio - audio.mean(-1, keepdim=True)) / (audio.var(-1, keepdim=True) + 1e-5).sqrt()
        x = F.gelu(self.n0(self.c0(audio[:, None, :].half())))
        x = F.gelu(self.c1(x))
        x = F.gelu(self.c2(x))
        return self.ln(x.transpose(1, 2))


def get_inputs():
    return [torch.randn(BATCH, SAMPLES)]


def get_init_inputs():
    return [CHANNELS]
