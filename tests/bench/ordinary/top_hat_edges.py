"""Morphology: opening and closing by 5 x 5, top hat, black hat, gradient of dilation and erosion."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, SIDE = 16, 1024


class Model(nn.Module):
    def forward(self, x):
        def dilate(y):
            return F.max_pool2d(y, 5, 1, 2)

        def erode(y):
            return -F.max_pool2d(-y, 5, 1, 2)

        big, small = dilate(x), erode(x)
        opened, closed = dilate(small), erode(big)
        return x - opened, closed - x, big - small


def get_inputs():
    return [torch.rand(BATCH, 1, SIDE, SIDE)]


def get_init_inputs():
    return []
