"""Attention with ALiBi's linear biases, causal."""

import torch
from torch import nn

BATCH, SEQ, HEADS, HEAD = 4, 1024, 16, 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        slopes = torch.tensor([2 ** (-8.0 * (i + 1) / HEADS) for i in range(HEADS)])
        self.register_buffer("slopes", slopes.view(1, HEADS, 1, 1))

    def forward(self, q, k, v):
        pos = torch.arange(SEQ, device=q.device)
        dist = pos[None, :] - pos[:, None]
        bias = self.slopes * dist.float()
        scores = (q @ k.transpose(-1, -2)).float() * HEAD**-0.5 + bias
        scores = scores.masked_fill(dist > 0, torch.finfo(torch.float32).min)
        return scores.softmax(-1).to(q.dtype) @ v


def get_inputs():
    return [torch.randn(BATCH, HEADS, SEQ, HEAD, dtype=torch.float16) for _ in range(3)]


def get_init_inputs():
    return []
