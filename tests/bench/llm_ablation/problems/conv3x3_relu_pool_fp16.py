"""A 3 x 3 convolution with bias, ReLU and a 2 x 2 maximum."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def __init__(self, channels, filters):
        super().__init__()
        self.conv = nn.Conv2d(channels, filters, 3, padding=1).half()

    def forward(self, x):
        return F.max_pool2d(torch.relu(self.conv(x)), 2)


def get_inputs():
    return [torch.randn(64, 64, 64, 64).half()]


def get_init_inputs():
    return [64, 128]
