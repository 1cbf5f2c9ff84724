"""A block of NAFNet: norms of a pixel's channels, a depthwise convolution, gates that are products of halves, a
simplified attention of channels, learned scales of both residuals, TF32 allowed."""

import torch
import torch.nn as nn

BATCH = 8
CHANNELS = 64
SIZE = 128


class Model(nn.Module):
    def __init__(self, channels):
        super().__init__()
        c = channels
        self.w1, self.b1 = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))
        self.w2, self.b2 = nn.Parameter(torch.ones(c)), nn.Parameter(torch.zeros(c))
        self.expand = nn.Conv2d(c, 2 * c, 1)
        self.depthwise = nn.Conv2d(2 * c, 2 * c, 3, padding=1, groups=2 * c)
        self.attend = nn.Conv2d(c, c, 1)
        self.project = nn.Conv2d(c, c, 1)
        self.widen = nn.Conv2d(c, 2 * c, 1)
        self.narrow = nn.Conv2d(c, c, 1)
        self.beta = nn.Parameter(0.5 * torch.ones(1, c, 1, 1))
        self.gamma = nn.Parameter(0.5 * torch.ones(1, c, 1, 1))

    def normed(self, x, weight, bias):
        mean = x.mean(1, keepdim=True)
        var = (x - mean).square().mean(1, keepdim=True)
        return weight[:, None, None] * ((x - mean) / (var + 1e-6).sqrt()) + bias[:, None, None]

    def forward(self, x):
        a, b = self.depthwise(self.expand(self.normed(x, self.w1, self.b1))).chunk(2, 1)
        y = a * b
        y = y * self.attend(y.mean((2, 3), keepdim=True))
        h = x + self.beta * self.project(y)
        a, b = self.widen(self.normed(h, self.w2, self.b2)).chunk(2, 1)
        return h + self.gamma * self.narrow(a * b)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS]
