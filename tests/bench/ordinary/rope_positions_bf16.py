"""Rotary embedding by position ids from a cache, halves apart, grouped queries, on packed tokens in bf16."""

import torch
from torch import nn

TOKENS, HEADS, KV, HEAD, LENGTH = 3333, 32, 8, 128, 8192


class Model(nn.Module):
    def rotated(self, x, cos, sin):
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def forward(self, q, k, positions, cache):
        cos, sin = cache.index_select(0, positions).chunk(2, dim=-1)
        cos, sin = cos.unsqueeze(1), sin.unsqueeze(1)
        q = self.rotated(q.view(TOKENS, HEADS, HEAD).float(), cos, sin).to(q.dtype)
        k = self.rotated(k.view(TOKENS, KV, HEAD).float(), cos, sin).to(k.dtype)
        return q.flatten(1), k.flatten(1)


def get_inputs():
    angle = torch.outer(torch.arange(LENGTH).float(), 10000 ** (-torch.arange(0, HEAD, 2).float() / HEAD))
    q, k = (torch.randn(TOKENS, h * HEAD, dtype=torch.bfloat16) for h in (HEADS, KV))
    return [q, k, torch.randint(0, LENGTH, (TOKENS,)), torch.cat([angle.cos(), angle.sin()], dim=-1)]


def get_init_inputs():
    return []
