"""Multi-head latent attention's projections: down, RMSNorm of the latent, up, and the shared rotary key."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, D, LATENT, ROPE, HEADS, HEAD = 4096, 2048, 512, 64, 16, 128


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.down = nn.Linear(D, LATENT + ROPE, bias=False)
        self.norm = nn.Parameter(torch.ones(LATENT))
        self.up = nn.Linear(LATENT, HEADS * 2 * HEAD, bias=False)
        self.to(torch.bfloat16)

    def forward(self, x, cos, sin):
        latent, rope = self.down(x).split([LATENT, ROPE], dim=-1)
        latent = F.rms_norm(latent, (LATENT,), self.norm, 1e-6)
        k, v = self.up(latent).view(-1, HEADS, 2 * HEAD).split(HEAD, dim=-1)
        even, odd = rope[..., 0::2].float(), rope[..., 1::2].float()
        turned = torch.stack([even * cos - odd * sin, even * sin + odd * cos], dim=-1).flatten(-2).to(x.dtype)
        k = torch.cat([k, turned.unsqueeze(1).expand(-1, HEADS, -1)], dim=-1)
        return k, v


def get_inputs():
    angle = torch.rand(TOKENS, ROPE // 2) * 6.28
    return [torch.randn(TOKENS, D, dtype=torch.bfloat16), angle.cos(), angle.sin()]


def get_init_inputs():
    return []
