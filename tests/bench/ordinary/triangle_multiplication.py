"""AlphaFold's outgoing triangle multiplication: norm, gated projections, product over a shared edge, gate."""

import torch
from torch import nn

N, C = 256, 128


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm_in, self.norm_out = nn.LayerNorm(C), nn.LayerNorm(C)
        self.proj, self.gate = nn.Linear(C, 2 * C), nn.Linear(C, 2 * C)
        self.out, self.out_gate = nn.Linear(C, C), nn.Linear(C, C)
        self.to(torch.bfloat16)

    def forward(self, z, mask):
        z = self.norm_in(z)
        ab = self.proj(z) * torch.sigmoid(self.gate(z)) * mask.unsqueeze(-1)
        a, b = ab.chunk(2, dim=-1)
        x = torch.einsum("bikc,bjkc->bijc", a, b)
        return self.out(self.norm_out(x)) * torch.sigmoid(self.out_gate(z))


def get_inputs():
    z = torch.randn(1, N, N, C, dtype=torch.bfloat16)
    return [z, (torch.rand(1, N, N) > 0.1).to(torch.bfloat16)]


def get_init_inputs():
    return []
