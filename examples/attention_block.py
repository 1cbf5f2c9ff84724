"""Causal self-attention with its projections and the residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
SEQUENCE = 256
FEATURES = 256
HEADS = 4


class Model(nn.Module):
    def __init__(self, features: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(features, 3 * features)
        self.out = nn.Linear(features, features)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, sequence, features = x.shape
        qkv = self.qkv(x).view(batch, sequence, 3, self.heads, features // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + self.out(y.transpose(1, 2).reshape(batch, sequence, features))


def get_inputs():
    return [torch.randn(BATCH, SEQUENCE, FEATURES)]


def get_init_inputs():
    return [FEATURES, HEADS]
