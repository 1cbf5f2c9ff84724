"""A DiT-XL block: six modulations of one condition, attention with RMS-normed queries and keys, gated GELU-tanh MLP."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, N, D, H = 16, 256, 1152, 16


class Model(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.mod = nn.Linear(d, 6 * d)
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.fc1, self.fc2 = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)
        self.qn, self.kn = nn.RMSNorm(d // h, eps=1e-6), nn.RMSNorm(d // h, eps=1e-6)
        self.to(torch.bfloat16)

    def forward(self, x, c):
        b, n, d = x.shape
        s1, c1, g1, s2, c2, g2 = self.mod(F.silu(c)).unsqueeze(1).chunk(6, dim=-1)
        y = F.layer_norm(x, (d,), eps=1e-6) * (1 + c1) + s1
        q, k, v = self.qkv(y).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4)
        a = F.scaled_dot_product_attention(self.qn(q), self.kn(k), v)
        x = x + g1 * self.proj(a.transpose(1, 2).reshape(b, n, d))
        y = F.layer_norm(x, (d,), eps=1e-6) * (1 + c2) + s2
        return x + g2 * self.fc2(F.gelu(self.fc1(y), approximate="tanh"))


def get_inputs():
    return [torch.randn(B, N, D, dtype=torch.bfloat16), torch.randn(B, D, dtype=torch.bfloat16)]


def get_init_inputs():
    return [D, H]
