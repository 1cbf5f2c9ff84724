"""Mistral's sliding-window attention through scaled_dot_product_attention with a boolean mask."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, SEQ, HEADS, HEAD, WINDOW = 2, 2048, 16, 128, 512


class Model(nn.Module):
    def forward(self, q, k, v):
        pos = torch.arange(SEQ, device=q.device)
        gap = pos[:, None] - pos[None, :]
        mask = (gap >= 0) & (gap < WINDOW)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def get_inputs():
    return [torch.randn(BATCH, HEADS, SEQ, HEAD, dtype=torch.bfloat16) for _ in range(3)]


def get_init_inputs():
    return []
