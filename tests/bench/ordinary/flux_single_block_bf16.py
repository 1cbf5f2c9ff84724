"""A single-stream block of FLUX: shift, scale and gate from a conditioning vector, one product for queries, keys,
values and the MLP, norms of heads, rotation of pairs, attention, one product back, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 1
TOKENS = 2560
WIDTH = 3072
HEADS = 24
MLP = 4


class Model(nn.Module):
    def __init__(self, width, heads, mlp):
        super().__init__()
        bf = torch.bfloat16
        self.width, self.heads, self.mlp = width, heads, width * mlp
        self.modulation = nn.Linear(width, 3 * width, dtype=bf)
        self.pre_norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6, dtype=bf)
        self.linear1 = nn.Linear(width, 3 * width + self.mlp, dtype=bf)
        self.linear2 = nn.Linear(width + self.mlp, width, dtype=bf)
        self.q_scale = nn.Parameter(torch.ones(width // heads, dtype=bf))
        self.k_scale = nn.Parameter(torch.ones(width // heads, dtype=bf))

    def norm(self, x, scale):
        h = x.float()
        return (h * torch.rsqrt(h.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * scale

    def rope(self, x, table):
        pairs = x.float().reshape(*x.shape[:-1], -1, 1, 2)
        out = table[..., 0] * pairs[..., 0] + table[..., 1] * pairs[..., 1]
        return out.reshape(x.shape).to(x.dtype)

    def forward(self, x, vec, table):
        shift, scale, gate = self.modulation(F.silu(vec))[:, None, :].chunk(3, dim=-1)
        h = (1 + scale) * self.pre_norm(x) + shift
        qkv, mlp = torch.split(self.linear1(h), [3 * self.width, self.mlp], dim=-1)
        b, t, _ = qkv.shape
        q, k, v = qkv.view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        q, k = self.norm(q, self.q_scale), self.norm(k, self.k_scale)
        q, k = self.rope(q, table), self.rope(k, table)
        attn = F.scaled_dot_product_attention(q, k, v)
        attn = attn.transpose(1, 2).reshape(b, t, self.width)
        out = self.linear2(torch.cat((attn, F.gelu(mlp, approximate="tanh")), dim=2))
        return x + gate * out


def get_inputs():
    angle = torch.rand(1, 1, TOKENS, WIDTH // HEADS // 2) * 100
    c, s = angle.cos(), angle.sin()
    table = torch.stack([c, -s, s, c], dim=-1).reshape(1, 1, TOKENS, WIDTH // HEADS // 2, 2, 2)
    return [
        torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, WIDTH, dtype=torch.bfloat16),
        table,
    ]


def get_init_inputs():
    return [WIDTH, HEADS, MLP]
