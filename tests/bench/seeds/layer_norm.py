"""LayerNorm over (64, 256, 256), fp32: a seed of this field."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(shape)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(x)


batch_size = 16
features = 64
height = 256
width = 256


def get_inputs():
    return [torch.rand(batch_size, features, height, width)]


def get_init_inputs():
    return [(features, height, width)]
