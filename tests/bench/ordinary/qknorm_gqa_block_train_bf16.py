"""Qwen3's attention: RMS-normed heads, rotary embedding, grouped causal attention and the output projection, trained,
bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
SEQUENCE = 2048
WIDTH = 1024
HEADS = 16
KV_HEADS = 8
HEAD_DIM = 128


class Model(nn.Module):
    def __init__(self, width, heads, kv_heads, dim, sequence):
        super().__init__()
        self.heads, self.kv_heads, self.dim = heads, kv_heads, dim
        self.q = nn.Linear(width, heads * dim, bias=False)
        self.k = nn.Linear(width, kv_heads * dim, bias=False)
        self.v = nn.Linear(width, kv_heads * dim, bias=False)
        self.o = nn.Linear(heads * dim, width, bias=False)
        self.q_norm = nn.RMSNorm(dim, eps=1e-6)
        self.k_norm = nn.RMSNorm(dim, eps=1e-6)
        self.to(torch.bfloat16)
        inv = 1.0 / 1e6 ** (torch.arange(0, dim, 2) / dim)
        angle = torch.outer(torch.arange(sequence).float(), inv)
        angle = torch.cat([angle, angle], dim=-1)
        self.register_buffer("cos", angle.cos().bfloat16())
        self.register_buffer("sin", angle.sin().bfloat16())

    def rotate(self, x):
        a, b = x.chunk(2, dim=-1)
        return x * self.cos + torch.cat([-b, a], dim=-1) * self.sin

    def forward(self, x):
        b, t, _ = x.shape
        q = self.rotate(self.q_norm(self.q(x).view(b, t, self.heads, self.dim)).transpose(1, 2))
        k = self.rotate(self.k_norm(self.k(x).view(b, t, self.kv_heads, self.dim)).transpose(1, 2))
        v = self.v(x).view(b, t, self.kv_heads, self.dim).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.o(y.transpose(1, 2).reshape(b, t, -1))


def get_inputs():
    return [torch.randn(BATCH, SEQUENCE, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HEADS, KV_HEADS, HEAD_DIM, SEQUENCE]
