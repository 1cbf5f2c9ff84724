"""A Llama's MLP: gate and up projections, SiLU gate, down projection."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, D, HIDDEN = 4096, 2048, 5632


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, HIDDEN, bias=False)
        self.up = nn.Linear(D, HIDDEN, bias=False)
        self.down = nn.Linear(HIDDEN, D, bias=False)
        self.to(torch.bfloat16)

    def forward(self, x):
        return self.down(F.silu(self.gate(x)) * self.up(x))


def get_inputs():
    return [torch.randn(TOKENS, D, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
