"""DiT's adaLN-zero: layer norm without weights, modulated by the timestep, gated residual."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, SEQ, D = 16, 1024, 1152


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.ada = nn.Linear(D, 3 * D, dtype=torch.bfloat16)

    def forward(self, x, y, t):
        shift, scale, gate = self.ada(F.silu(t)).unsqueeze(1).chunk(3, dim=-1)
        x = x + gate * y
        return x, F.layer_norm(x, (D,), eps=1e-6) * (1 + scale) + shift


def get_inputs():
    x, y = (torch.randn(BATCH, SEQ, D, dtype=torch.bfloat16) for _ in range(2))
    return [x, y, torch.randn(BATCH, D, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
