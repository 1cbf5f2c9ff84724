"""AlphaFold's MSA row attention with a bias from pairs, a sigmoid gate and a mask. TF32 allowed."""

import torch
import torch.nn as nn

S, R, D, P, H = 64, 256, 256, 128, 8


class Model(nn.Module):
    def __init__(self, d, p, h):
        super().__init__()
        self.h = h
        self.nm, self.np = nn.LayerNorm(d), nn.LayerNorm(p)
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.b, self.g, self.o = nn.Linear(p, h, bias=False), nn.Linear(d, d), nn.Linear(d, d)

    def forward(self, m, z, mask):
        s, r, d = m.shape
        x = self.nm(m)
        q, k, v = (f(x).view(s, r, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        bias = self.b(self.np(z)).permute(2, 0, 1).unsqueeze(0)
        scores = (q * (d // self.h) ** -0.5) @ k.transpose(-1, -2) + bias + (mask[:, None, None, :] - 1) * 1e9
        y = torch.softmax(scores, -1) @ v
        y = y.transpose(1, 2).reshape(s, r, d) * torch.sigmoid(self.g(x))
        return m + self.o(y)


def get_inputs():
    return [torch.randn(S, R, D), torch.randn(R, R, P), (torch.rand(S, R) > 0.1).float()]


def get_init_inputs():
    return [D, P, H]
