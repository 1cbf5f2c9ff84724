"""Experts of gpt-oss: four chosen of 32 for each token, gate and up interleaved and clamped, their biases, the weighted
sum, bf16."""

import torch
import torch.nn as nn

TOKENS = 32
WIDTH = 1440
HIDDEN = 1440
EXPERTS = 32
CHOSEN = 4
LIMIT = 7.0


class Model(nn.Module):
    def __init__(self, width, hidden, experts, chosen, limit):
        super().__init__()
        bf = torch.bfloat16
        self.chosen, self.limit = chosen, limit
        self.router = nn.Linear(width, experts, dtype=bf)
        self.w1 = nn.Parameter(0.02 * torch.randn(experts, 2 * hidden, width, dtype=bf))
        self.b1 = nn.Parameter(0.02 * torch.randn(experts, 2 * hidden, dtype=bf))
        self.w2 = nn.Parameter(0.02 * torch.randn(experts, width, hidden, dtype=bf))
        self.b2 = nn.Parameter(0.02 * torch.randn(experts, width, dtype=bf))

    def forward(self, x):
        best = torch.topk(self.router(x), k=self.chosen, dim=-1, sorted=True)
        weights = torch.softmax(best.values, dim=1)
        index = best.indices
        h = torch.einsum("beck,bk->bec", self.w1[index], x) + self.b1[index]
        gate, linear = h[..., ::2], h[..., 1::2]
        gate = gate.clamp(max=self.limit)
        linear = linear.clamp(min=-self.limit, max=self.limit)
        h = gate * torch.sigmoid(1.702 * gate) * (linear + 1)
        y = torch.einsum("beck,bek->bec", self.w2[index], h) + self.b2[index]
        return x + torch.einsum("bec,be->bc", y, weights)


def get_inputs():
    return [torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HIDDEN, EXPERTS, CHOSEN, LIMIT]
