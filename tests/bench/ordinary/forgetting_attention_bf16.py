"""A forgetting transformer's attention: queries and keys normed, a forget gate a head, its logs summed along time and
added to the causal scores, an output gate, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
TOKENS = 2048
WIDTH = 1024
HEADS = 16


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        b = torch.bfloat16
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False, dtype=b)
        self.forget = nn.Linear(width, heads, dtype=b)
        self.gate = nn.Linear(width, width, bias=False, dtype=b)
        self.out = nn.Linear(width, width, bias=False, dtype=b)
        self.q_norm = nn.Parameter(torch.ones(width // heads, dtype=b))
        self.k_norm = nn.Parameter(torch.ones(width // heads, dtype=b))

    def normed(self, x, weight):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * weight

    def forward(self, x):
        n, t, c = x.shape
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        q, k = self.normed(q, self.q_norm), self.normed(k, self.k_norm)
        logs = F.logsigmoid(self.forget(x).float()).transpose(1, 2).cumsum(-1)
        scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        scores = scores + logs[..., :, None] - logs[..., None, :]
        seen = torch.ones(t, t, dtype=torch.bool, device=x.device).tril()
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1).to(x.dtype)
        mixed = (weights @ v).transpose(1, 2).reshape(n, t, c)
        return self.out(mixed * torch.sigmoid(self.gate(x)))


def get_inputs():
    return [torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HEADS]
