"""Gradients of YaRN's rotary embedding (half rotation), frequencies interpolated in the module, bf16."""

import math

import torch
from torch import nn

BATCH, SEQ, HEADS, HEAD = 4, 4096, 16, 128


class Model(nn.Module):
    def forward(self, grad_q, grad_k):
        half = HEAD // 2
        i = torch.arange(half, device=grad_q.device, dtype=torch.float32)
        freq = 1000000.0 ** (-i / half)
        ramp = ((i - 20.0) / 26.0).clamp(0, 1)
        freq = freq / 8.0 * ramp + freq * (1.0 - ramp)
        angle = torch.arange(SEQ, device=grad_q.device, dtype=torch.float32)[:, None] * freq[None, :]
        scale = 0.1 * math.log(8.0) + 1.0
        cos, sin = (angle.cos() * scale)[None, :, None, :], (angle.sin() * scale)[None, :, None, :]

        def turned(g):
            a, b = g[..., :half].float(), g[..., half:].float()
            return torch.cat([a * cos + b * sin, b * cos - a * sin], -1).to(g.dtype)

        return turned(grad_q), turned(grad_k)


def get_inputs():
    return [
        torch.randn(BATCH, SEQ, HEADS, HEAD, dtype=torch.bfloat16),
        torch.randn(BATCH, SEQ, HEADS // 4, HEAD, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return []
