"""Tensor-product attention: queries, keys and values are sums of few outer products of head and width factors, rotary
on the width factors, causal, and a squared error, trained, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
TOKENS = 1024
WIDTH = 1024
HEADS = 16
DIM = 64
RANK_Q = 6
RANK_KV = 2


class Model(nn.Module):
    def __init__(self, width, heads, dim, rank_q, rank_kv):
        super().__init__()
        b = torch.bfloat16
        self.heads, self.dim, self.ranks = heads, dim, (rank_q, rank_kv, rank_kv)
        self.head = nn.ModuleList(nn.Linear(width, r * heads, bias=False, dtype=b) for r in self.ranks)
        self.wide = nn.ModuleList(nn.Linear(width, r * dim, bias=False, dtype=b) for r in self.ranks)
        self.norm = nn.RMSNorm(width, eps=1e-6, dtype=b)
        self.out = nn.Linear(heads * dim, width, bias=False, dtype=b)

    def rotate(self, x, cos, sin):
        a, b = x.float().chunk(2, -1)
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)

    def forward(self, x, cos, sin, target):
        b, t, _ = x.shape
        y = self.norm(x)
        made = []
        for i, r in enumerate(self.ranks):
            heads = self.head[i](y).view(b, t, r, self.heads)
            wide = self.wide[i](y).view(b, t, r, self.dim)
            if i < 2:
                wide = self.rotate(wide, cos[:, None, :], sin[:, None, :])
            made.append((heads.transpose(-1, -2) @ wide / r).transpose(1, 2))
        y = F.scaled_dot_product_attention(*made, is_causal=True)
        y = x + self.out(y.transpose(1, 2).reshape(b, t, -1))
        return F.mse_loss(y.float(), target.float())


def get_inputs():
    angle = torch.arange(TOKENS)[:, None] * 10000.0 ** (-torch.arange(DIM // 2) / (DIM // 2))
    x = torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16)
    return [x, angle.cos(), angle.sin(), torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HEADS, DIM, RANK_Q, RANK_KV]
