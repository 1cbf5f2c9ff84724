"""Attention of gpt-oss: grouped queries, a window of 128, a learned sink in each head's softmax, bf16."""

import math

import torch
import torch.nn as nn

BATCH = 2
TOKENS = 1024
HEADS = 64
GROUPS = 8
HEAD = 64
WINDOW = 128


class Model(nn.Module):
    def __init__(self, heads, window):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(heads, dtype=torch.bfloat16))
        self.window = window

    def forward(self, q, k, v):
        b, t, groups, per, d = q.shape
        k = k[:, :, :, None, :].expand(-1, -1, -1, per, -1)
        v = v[:, :, :, None, :].expand(-1, -1, -1, per, -1)
        s = self.sinks.reshape(1, groups, per, 1, 1).expand(b, -1, -1, t, -1)
        mask = torch.triu(q.new_full((t, t), float("-inf")), diagonal=1)
        mask = mask + torch.tril(mask.new_full((t, t), float("-inf")), diagonal=-self.window)
        qk = torch.einsum("bqhmd,bkhmd->bhmqk", q, k) / math.sqrt(d)
        qk = qk + mask
        qk = torch.cat([qk, s], dim=-1)
        w = torch.softmax(qk, dim=-1)[..., :-1]
        out = torch.einsum("bhmqk,bkhmd->bqhmd", w, v)
        return out.reshape(b, t, -1)


def get_inputs():
    bf = torch.bfloat16
    return [
        torch.randn(BATCH, TOKENS, GROUPS, HEADS // GROUPS, HEAD, dtype=bf),
        torch.randn(BATCH, TOKENS, GROUPS, HEAD, dtype=bf),
        torch.randn(BATCH, TOKENS, GROUPS, HEAD, dtype=bf),
    ]


def get_init_inputs():
    return [HEADS, WINDOW]
