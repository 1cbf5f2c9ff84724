"""A residual block of a temporal convolutional network: two dilated causal convolutions with weight norm, chomp,
ReLU, a 1x1 on the way beside, the mean squared error of a forecast, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 64
IN = 32
CHANNELS = 128
STEPS = 1024
DILATION = 4


class Model(nn.Module):
    def __init__(self, inputs, channels, dilation):
        super().__init__()
        self.dilation = dilation
        self.v1 = nn.Parameter(0.1 * torch.randn(channels, inputs, 3))
        self.g1 = nn.Parameter(torch.ones(channels, 1, 1))
        self.b1 = nn.Parameter(torch.zeros(channels))
        self.v2 = nn.Parameter(0.1 * torch.randn(channels, channels, 3))
        self.g2 = nn.Parameter(torch.ones(channels, 1, 1))
        self.b2 = nn.Parameter(torch.zeros(channels))
        self.side = nn.Conv1d(inputs, channels, 1)
        self.head = nn.Linear(channels, 1)

    def conv(self, x, v, g, b):
        weight = g * v / v.norm(dim=(1, 2), keepdim=True)
        pad = 2 * self.dilation
        return F.conv1d(x, weight, b, padding=pad, dilation=self.dilation)[:, :, :-pad]

    def forward(self, x, target):
        h = torch.relu(self.conv(x, self.v1, self.g1, self.b1))
        h = torch.relu(self.conv(h, self.v2, self.g2, self.b2))
        h = torch.relu(h + self.side(x))
        return F.mse_loss(self.head(h.transpose(1, 2)).squeeze(-1), target)


def get_inputs():
    return [torch.randn(BATCH, IN, STEPS), torch.randn(BATCH, STEPS)]


def get_init_inputs():
    return [IN, CHANNELS, DILATION]
