"""Softpick: a rectified softmax whose rows may sum to less than one, so that no token is a sink; causal, grouped
queries, fp16."""

import torch
import torch.nn as nn

BATCH = 4
TOKENS = 1024
HEADS = 16
GROUPS = 4
DEPTH = 64


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def forward(self, q, k, v):
        k = k.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
        v = v.repeat_interleave(q.shape[1] // v.shape[1], dim=1)
        t = q.shape[2]
        scores = (q @ k.transpose(-1, -2)).float() * q.shape[-1] ** -0.5
        seen = torch.ones(t, t, dtype=torch.bool, device=q.device).tril()
        scores = scores.masked_fill(~seen, float("-inf"))
        top = scores.amax(-1, keepdim=True)
        moved = torch.exp(scores - top) - torch.exp(-top)
        picked = torch.where(seen, torch.relu(moved), torch.zeros_like(moved))
        total = torch.where(seen, moved.abs(), torch.zeros_like(moved)).sum(-1, keepdim=True)
        return (picked / (total + 1e-6)).to(v.dtype) @ v


def get_inputs():
    return [
        torch.randn(BATCH, HEADS, TOKENS, DEPTH, dtype=torch.float16),
        torch.randn(BATCH, GROUPS, TOKENS, DEPTH, dtype=torch.float16),
        torch.randn(BATCH, GROUPS, TOKENS, DEPTH, dtype=torch.float16),
    ]


def get_init_inputs():
    return []
