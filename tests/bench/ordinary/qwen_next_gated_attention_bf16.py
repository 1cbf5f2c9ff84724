"""Attention of Qwen3-Next: the query's product carries a gate, norms of heads, rotation of a quarter of the width,
grouped causal attention, a sigmoid gate before the output, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
TOKENS = 2048
WIDTH = 2048
HEADS = 16
GROUPS = 2
HEAD = 256
ROTATED = 64


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width, dtype=torch.bfloat16))

    def forward(self, x):
        h = x.float()
        h = h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)
        return (h * (1.0 + self.weight.float())).to(x.dtype)


def rotate_half(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


def partial_rope(x, cos, sin):
    n = cos.shape[-1]
    head, rest = x[..., :n], x[..., n:]
    return torch.cat((head * cos + rotate_half(head) * sin, rest), dim=-1)


class Model(nn.Module):
    def __init__(self, width, heads, groups, head):
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, head
        bf = torch.bfloat16
        self.q_proj = nn.Linear(width, heads * head * 2, bias=False, dtype=bf)
        self.k_proj = nn.Linear(width, groups * head, bias=False, dtype=bf)
        self.v_proj = nn.Linear(width, groups * head, bias=False, dtype=bf)
        self.o_proj = nn.Linear(heads * head, width, bias=False, dtype=bf)
        self.q_norm = RMSNorm(head)
        self.k_norm = RMSNorm(head)

    def forward(self, x, cos, sin):
        b, t, _ = x.shape
        q, gate = self.q_proj(x).view(b, t, self.heads, self.head * 2).chunk(2, dim=-1)
        q = self.q_norm(q).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(b, t, self.groups, self.head)).transpose(1, 2)
        v = self.v_proj(x).view(b, t, self.groups, self.head).transpose(1, 2)
        q = partial_rope(q, cos, sin)
        k = partial_rope(k, cos, sin)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        out = out.transpose(1, 2) * torch.sigmoid(gate)
        return self.o_proj(out.reshape(b, t, -1))


def get_inputs():
    position = torch.arange(TOKENS, dtype=torch.float32)
    frequency = 1e7 ** (-torch.arange(0, ROTATED, 2, dtype=torch.float32) / ROTATED)
    angle = torch.outer(position, frequency)
    angle = torch.cat((angle, angle), dim=-1)
    return [
        torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16),
        angle.cos().bfloat16(),
        angle.sin().bfloat16(),
    ]


def get_init_inputs():
    return [WIDTH, HEADS, GROUPS, HEAD]
