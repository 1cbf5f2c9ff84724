"""One packed QKV projection with rotate-half RoPE on queries and keys."""

import torch
from torch import nn

BATCH, SEQ, HEADS, HEAD = 4, 2048, 16, 128
D = HEADS * HEAD


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(D, 3 * D, bias=False, dtype=torch.bfloat16)
        inv = 1.0 / (10000 ** (torch.arange(0, HEAD, 2).float() / HEAD))
        angles = torch.outer(torch.arange(SEQ).float(), inv)
        angles = torch.cat([angles, angles], dim=-1)
        self.register_buffer("cos", angles.cos().to(torch.bfloat16))
        self.register_buffer("sin", angles.sin().to(torch.bfloat16))

    def rotate(self, x):
        a, b = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-b, a], dim=-1) * self.sin

    def forward(self, x):
        q, k, v = self.qkv(x).view(BATCH, SEQ, 3, HEADS, HEAD).permute(2, 0, 3, 1, 4)
        return self.rotate(q), self.rotate(k), v.contiguous()


def get_inputs():
    return [torch.randn(BATCH, SEQ, D, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
