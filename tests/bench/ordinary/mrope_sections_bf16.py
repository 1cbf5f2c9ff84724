"""Qwen2-VL's rotary embedding by time, height and width sections, applied to queries and keys, bf16."""

import torch
import torch.nn as nn

BATCH = 4
SEQUENCE = 4096
HEADS = 28
KV_HEADS = 4
HEAD_DIM = 128
SECTIONS = [16, 24, 24]


def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


class Model(nn.Module):
    def __init__(self, head_dim):
        super().__init__()
        self.register_buffer("inv_freq", 1.0 / (1e6 ** (torch.arange(0, head_dim, 2).float() / head_dim)))

    def forward(self, q, k, position_ids):
        inv = self.inv_freq[None, None, :, None].expand(3, position_ids.shape[1], -1, 1)
        freqs = (inv @ position_ids[:, :, None, :].float()).transpose(2, 3)
        emb = torch.cat((freqs, freqs), dim=-1)
        cos, sin = emb.cos().to(q.dtype), emb.sin().to(q.dtype)
        sections = SECTIONS * 2
        cos = torch.cat([m[i % 3] for i, m in enumerate(cos.split(sections, dim=-1))], dim=-1).unsqueeze(1)
        sin = torch.cat([m[i % 3] for i, m in enumerate(sin.split(sections, dim=-1))], dim=-1).unsqueeze(1)
        return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def get_inputs():
    q = torch.randn(BATCH, SEQUENCE, HEADS, HEAD_DIM, dtype=torch.bfloat16).transpose(1, 2)
    k = torch.randn(BATCH, SEQUENCE, KV_HEADS, HEAD_DIM, dtype=torch.bfloat16).transpose(1, 2)
    return [q, k, torch.randint(0, 1024, (3, BATCH, SEQUENCE))]


def get_init_inputs():
    return [HEAD_DIM]
