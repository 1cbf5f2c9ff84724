"""LFM2's gated short convolution: projection to three, gate, causal depthwise of three taps, gate, projection."""

import torch
import torch.nn as nn

B, L, D, K = 4, 4096, 1024, 3


class Model(nn.Module):
    def __init__(self, d, k):
        super().__init__()
        self.k = k
        self.inp, self.out = nn.Linear(d, 3 * d, bias=False), nn.Linear(d, d, bias=False)
        self.conv = nn.Conv1d(d, d, k, groups=d, padding=k - 1, bias=False)
        self.norm = nn.RMSNorm(d, eps=1e-5)
        self.to(torch.bfloat16)

    def forward(self, x):
        length = x.shape[1]
        b, c, h = self.inp(self.norm(x)).transpose(1, 2).chunk(3, dim=1)
        y = c * self.conv(b * h)[..., :length]
        return x + self.out(y.transpose(1, 2))


def get_inputs():
    return [torch.randn(B, L, D, dtype=torch.bfloat16)]


def get_init_inputs():
    return [D, K]
