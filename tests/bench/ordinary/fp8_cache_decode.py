"""Decode attention over a cache of keys and values in fp8 with a scale for each head, grouped queries."""

import torch
from torch import nn

BATCH, HEADS, KV, SEQ, HEAD = 32, 32, 8, 1024, 128


class Model(nn.Module):
    def forward(self, q, k, v, k_scale, v_scale):
        k = (k.float() * k_scale[None, :, None, None]).to(q.dtype)
        v = (v.float() * v_scale[None, :, None, None]).to(q.dtype)
        q = q.view(BATCH, KV, HEADS // KV, HEAD)
        scores = torch.matmul(q, k.transpose(-2, -1)).float() * HEAD**-0.5
        return torch.matmul(torch.softmax(scores, -1).to(q.dtype), v).view(BATCH, HEADS, HEAD)


def get_inputs():
    q = torch.randn(BATCH, HEADS, HEAD, dtype=torch.bfloat16)
    kv = [torch.randn(BATCH, KV, SEQ, HEAD).to(torch.float8_e4m3fn) for _ in range(2)]
    return [q, *kv, 0.5 + torch.rand(KV), 0.5 + torch.rand(KV)]


def get_init_inputs():
    return []
