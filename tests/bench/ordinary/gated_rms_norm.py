"""Mamba-2's gated norm: a state space's output times silu of its gate, normalised in groups, in bf16."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, SEQ, D, GROUPS = 4, 2048, 4096, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(1 + 0.1 * torch.randn(D, dtype=torch.bfloat16))

    def forward(self, x, gate):
        y = x.float() * F.silu(gate.float())
        y = y.view(*y.shape[:-1], GROUPS, -1)
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-5)
        return self.weight * y.flatten(-2).to(x.dtype)


def get_inputs():
    return [torch.randn(BATCH, SEQ, D, dtype=torch.bfloat16) for _ in range(2)]


def get_init_inputs():
    return []
