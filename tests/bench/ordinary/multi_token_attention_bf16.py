"""Multi-token attention: scores are convolved over queries and keys before the softmax, causally, and weights mixed
between pairs of heads behind it, then a norm of each head, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
TOKENS = 1024
WIDTH = 1024
HEADS = 16
QUERIES = 6
KEYS = 11


class Model(nn.Module):
    def __init__(self, width, heads, queries, keys):
        super().__init__()
        b = torch.bfloat16
        self.heads, self.queries, self.keys = heads, queries, keys
        self.qkv = nn.Linear(width, 3 * width, bias=False, dtype=b)
        self.out = nn.Linear(width, width, bias=False, dtype=b)
        self.filters = nn.Parameter((0.1 * torch.randn(heads, 1, queries, keys)).to(b))
        self.mix = nn.Parameter((0.7 * torch.eye(2).repeat(heads // 2, 1, 1) + 0.1).to(b))
        self.gain = nn.Parameter(torch.ones(width // heads, dtype=b))

    def forward(self, x):
        b, t, w = x.shape
        h, d = self.heads, w // self.heads
        q, k, v = self.qkv(x).view(b, t, 3, h, d).permute(2, 0, 3, 1, 4)
        causal = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        scores = (q @ k.transpose(-1, -2) * d**-0.5).masked_fill(~causal, 0.0)
        scores = F.pad(scores, (self.keys // 2, self.keys // 2, self.queries - 1, 0))
        scores = F.conv2d(scores, self.filters, groups=h)
        weights = scores.masked_fill(~causal, float("-inf")).float().softmax(-1).to(x.dtype)
        weights = torch.einsum("bgiqk,gji->bgjqk", weights.view(b, h // 2, 2, t, t), self.mix).reshape(b, h, t, t)
        y = weights @ v
        y = F.rms_norm(y, (d,), self.gain, 1e-6)
        return self.out(y.transpose(1, 2).reshape(b, t, w))


def get_inputs():
    return [torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HEADS, QUERIES, KEYS]
