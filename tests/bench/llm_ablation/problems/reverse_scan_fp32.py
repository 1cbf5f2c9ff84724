"""Returns without discount: sums from each step to the end, along the middle dimension."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, rewards, scale):
        return rewards.flip(1).cumsum(1).flip(1) * scale


def get_inputs():
    return [torch.randn(16, 4096, 512), torch.randn(512)]


def get_init_inputs():
    return []
