"""A residual block of diffusion policy's 1-D U-net: convolutions, group norm, Mish, and scale and shift by the
observation, then downsampled, TF32 allowed."""

import torch
import torch.nn as nn

BATCH = 256
CHANNELS = 256
OUT = 512
HORIZON = 16
CONDITION = 640


class Block(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        self.conv = nn.Conv1d(fan_in, fan_out, 5, padding=2)
        self.norm = nn.GroupNorm(8, fan_out)
        self.act = nn.Mish()

    def forward(self, x):
        return self.act(self.norm(self.conv(x)))


class Model(nn.Module):
    def __init__(self, channels, out, condition):
        super().__init__()
        self.first = Block(channels, out)
        self.second = Block(out, out)
        self.film = nn.Sequential(nn.Mish(), nn.Linear(condition, 2 * out))
        self.residual = nn.Conv1d(channels, out, 1)
        self.down = nn.Conv1d(out, out, 3, stride=2, padding=1)

    def forward(self, x, cond):
        scale, bias = self.film(cond).unsqueeze(-1).chunk(2, dim=1)
        y = scale * self.first(x) + bias
        y = self.second(y) + self.residual(x)
        return self.down(y), y


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HORIZON), torch.randn(BATCH, CONDITION)]


def get_init_inputs():
    return [CHANNELS, OUT, CONDITION]
