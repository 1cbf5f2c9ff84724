"""Experts that choose their tokens: probabilities over experts, the best tokens of each, their feed-forward by batched
products, and weighed sums back at the tokens, in bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 1024
WIDTH = 256
HIDDEN = 512
EXPERTS = 8
CAPACITY = 256


class Model(nn.Module):
    def __init__(self, width, hidden, experts, capacity):
        super().__init__()
        self.capacity = capacity
        self.router = nn.Parameter(torch.randn(width, experts) / width**0.5)
        self.up = nn.Parameter(torch.randn(experts, width, hidden, dtype=torch.bfloat16) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width, dtype=torch.bfloat16) / hidden**0.5)

    def forward(self, x):
        scores = (x.float() @ self.router).softmax(-1)
        weights, chosen = scores.t().topk(self.capacity, -1)
        taken = x[chosen]
        y = torch.bmm(F.gelu(torch.bmm(taken, self.up), approximate="tanh"), self.down)
        y = (y.float() * weights[..., None]).flatten(0, 1)
        return x + torch.zeros_like(x, dtype=torch.float32).index_add(0, chosen.flatten(), y).to(x.dtype)


def get_inputs():
    return [torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HIDDEN, EXPERTS, CAPACITY]
