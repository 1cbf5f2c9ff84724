"""Whisper's audio stem: two 1-d convolutions with GELU, positions added, layer norm; fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, M, T, D = 16, 128, 3000, 1280


class Model(nn.Module):
    def __init__(self, mels, width, frames):
        super().__init__()
        self.c1 = nn.Conv1d(mels, width, 3, padding=1)
        self.c2 = nn.Conv1d(width, width, 3, stride=2, padding=1)
        self.pos = nn.Parameter(torch.randn(frames // 2, width) * 0.02)
        self.norm = nn.LayerNorm(width)
        self.half()

    def forward(self, mel):
        x = F.gelu(self.c2(F.gelu(self.c1(mel))))
        return self.norm(x.transpose(1, 2) + self.pos)


def get_inputs():
    return [torch.randn(B, M, T, dtype=torch.float16)]


def get_init_inputs():
    return [M, D, T]
