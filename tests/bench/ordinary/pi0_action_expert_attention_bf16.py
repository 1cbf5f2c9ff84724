"""An action expert's attention as in pi0: noisy action chunks see a cached prefix of images and words, the state, and
one another; grouped heads, rotary places, a gate by the time of the flow, in bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
ACTIONS = 32
PREFIX = 384
WIDTH = 512
HEADS = 8
DIM = 64


class Model(nn.Module):
    def __init__(self, width, heads, dim):
        super().__init__()
        self.heads, self.dim = heads, dim
        self.q = nn.Linear(width, heads * dim, bias=False)
        self.kv = nn.Linear(width, 2 * dim, bias=False)
        self.out = nn.Linear(heads * dim, width, bias=False)
        self.gate = nn.Linear(width, width)
        self.bfloat16()
        self.register_buffer("inverse", 10000.0 ** (-torch.arange(0, dim, 2).float() / dim))

    def rotate(self, x, places):
        angle = places[:, None, :, None].float() * self.inverse
        c, s = angle.cos(), angle.sin()
        a, b = x.float().chunk(2, -1)
        return torch.cat([a * c - b * s, b * c + a * s], -1).to(x.dtype)

    def forward(self, x, time, keys, values, length):
        b, t, _ = x.shape
        q = self.q(x).reshape(b, t, self.heads, self.dim).transpose(1, 2)
        k, v = self.kv(x).reshape(b, t, 2, 1, self.dim).permute(2, 0, 3, 1, 4)
        places = length[:, None] + torch.arange(t, device=x.device)
        q, k = self.rotate(q, places), self.rotate(k, places)
        k, v = torch.cat([keys, k], 2), torch.cat([values, v], 2)
        prefix = torch.arange(keys.shape[2], device=x.device) < length[:, None]
        seen = torch.cat([prefix, torch.ones_like(prefix[:, :t])], 1)[:, None, None, :]
        k = k.expand(-1, self.heads, -1, -1)
        v = v.expand(-1, self.heads, -1, -1)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
        y = self.out(y.transpose(1, 2).reshape(b, t, -1))
        return x + y * torch.sigmoid(self.gate(F.silu(time)))[:, None]


def get_inputs():
    return [
        torch.randn(BATCH, ACTIONS, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, 1, PREFIX, DIM, dtype=torch.bfloat16),
        torch.randn(BATCH, 1, PREFIX, DIM, dtype=torch.bfloat16),
        torch.randint(PREFIX // 2, PREFIX, (BATCH,)),
    ]


def get_init_inputs():
    return [WIDTH, HEADS, DIM]
