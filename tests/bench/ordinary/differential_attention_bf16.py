"""Differential attention: two causal softmaxes subtracted with a learned weight, a norm of each head."""

import torch
import torch.nn as nn

B, L, H, D = 2, 1024, 8, 64


class Model(nn.Module):
    def __init__(self, d, init):
        super().__init__()
        self.lq1, self.lk1, self.lq2, self.lk2 = (nn.Parameter(torch.randn(d) * 0.1) for _ in range(4))
        self.norm = nn.RMSNorm(2 * d, eps=1e-5, dtype=torch.bfloat16)
        self.init = init

    def forward(self, q, k, v):
        b, length, h2, d = q.shape
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        s = (q * d**-0.5) @ k.transpose(-1, -2)
        mask = torch.ones(length, length, dtype=torch.bool, device=q.device).triu(1)
        p = torch.softmax(s.masked_fill(mask, float("-inf")).float(), -1).to(q.dtype)
        weight = (self.lq1 * self.lk1).sum().exp() - (self.lq2 * self.lk2).sum().exp() + self.init
        p = p.view(b, h2 // 2, 2, length, length)
        p = p[:, :, 0] - weight.to(q.dtype) * p[:, :, 1]
        return (self.norm(p @ v) * (1 - self.init)).transpose(1, 2).reshape(b, length, -1)


def get_inputs():
    half = torch.bfloat16
    return [
        torch.randn(B * 4, L, 2 * H, D, dtype=half),
        torch.randn(B * 4, L, 2 * H, D, dtype=half),
        torch.randn(B * 4, L, H, 2 * D, dtype=half),
    ]


def get_init_inputs():
    return [D, 0.35]
