"""SwiGLU gate: the SiLU of one half of the features times the other half."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 2048
FEATURES = 2048


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up


def get_inputs():
    return [torch.randn(ROWS, 2 * FEATURES)]


def get_init_inputs():
    return []
