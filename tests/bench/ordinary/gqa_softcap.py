"""Grouped-query attention written out, causal, with Gemma's soft cap on the logits."""

import math

import torch
from torch import nn

BATCH, SEQ, HEADS, KV, HEAD = 2, 1024, 16, 4, 128


class Model(nn.Module):
    def forward(self, q, k, v):
        k = k.repeat_interleave(HEADS // KV, dim=1)
        v = v.repeat_interleave(HEADS // KV, dim=1)
        scores = torch.matmul(q, k.transpose(-2, -1)) / math.sqrt(HEAD)
        scores = 50.0 * torch.tanh(scores / 50.0)
        mask = torch.ones(SEQ, SEQ, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~mask, float("-inf"))
        return torch.matmul(torch.softmax(scores.float(), dim=-1).to(v.dtype), v)


def get_inputs():
    q = torch.randn(BATCH, HEADS, SEQ, HEAD, dtype=torch.bfloat16)
    kv = [torch.randn(BATCH, KV, SEQ, HEAD, dtype=torch.bfloat16) for _ in range(2)]
    return [q, *kv]


def get_init_inputs():
    return []
