"""A post-norm encoder layer, BERT's size; TF32 allowed."""

import math

import torch
import torch.nn.functional as F
from torch import nn

BATCH, SEQ, D, HEADS = 16, 384, 768, 12


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v, self.o = (nn.Linear(D, D) for _ in range(4))
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def split(self, x):
        return x.view(BATCH, SEQ, HEADS, D // HEADS).transpose(1, 2)

    def forward(self, x, mask):
        bias = (1.0 - mask[:, None, None, :]) * torch.finfo(x.dtype).min
        q, k, v = self.split(self.q(x)), self.split(self.k(x)), self.split(self.v(x))
        p = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(D // HEADS) + bias, dim=-1)
        a = (p @ v).transpose(1, 2).reshape(BATCH, SEQ, D)
        x = self.n1(x + self.o(a))
        return self.n2(x + self.down(F.gelu(self.up(x), approximate="tanh")))


def get_inputs():
    mask = (torch.arange(SEQ)[None, :] < torch.randint(SEQ // 4, SEQ + 1, (BATCH, 1))).float()
    return [torch.randn(BATCH, SEQ, D), mask]


def get_init_inputs():
    return []
