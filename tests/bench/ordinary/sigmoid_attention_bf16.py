"""Sigmoid attention with a causal mask, normed queries and keys and a bias of minus log of the length, bf16."""

import math

import torch
import torch.nn as nn

BATCH = 4
SEQUENCE = 2048
WIDTH = 2048
HEADS = 16


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False, dtype=torch.bfloat16)
        self.out = nn.Linear(width, width, bias=False, dtype=torch.bfloat16)
        self.q_norm = nn.LayerNorm(width // heads, dtype=torch.bfloat16)
        self.k_norm = nn.LayerNorm(width // heads, dtype=torch.bfloat16)

    def forward(self, x):
        b, t, c = x.shape
        q, k, v = self.qkv(x).view(b, t, 3, self.heads, c // self.heads).permute(2, 0, 3, 1, 4).unbind(0)
        q, k = self.q_norm(q), self.k_norm(k)
        scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1]) - math.log(t)
        mask = torch.tril(torch.ones(t, t, dtype=torch.bool, device=x.device))
        weights = torch.sigmoid(scores) * mask
        y = (weights @ v).transpose(1, 2).reshape(b, t, c)
        return self.out(y)


def get_inputs():
    return [torch.randn(BATCH, SEQUENCE, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HEADS]
