"""Barlow Twins: correlation of two normalised views, on- and off-diagonal terms, with its gradient wanted."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, a, b):
        a = (a - a.mean(0)) / a.std(0)
        b = (b - b.mean(0)) / b.std(0)
        c = a.T @ b / a.shape[0]
        on = (torch.diagonal(c) - 1).square().sum()
        off = c.square().sum() - torch.diagonal(c).square().sum()
        return on + 0.005 * off


def get_inputs():
    return [torch.randn(512, 256), torch.randn(512, 256)]


def get_init_inputs():
    return []
