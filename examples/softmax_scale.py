"""Softmax over rows of scaled scores."""

import torch
import torch.nn as nn

ROWS = 2048
COLUMNS = 1024
SCALE = 0.125


class Model(nn.Module):
    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * self.scale, dim=-1)


def get_inputs():
    return [8.0 * torch.randn(ROWS, COLUMNS)]


def get_init_inputs():
    return [SCALE]
