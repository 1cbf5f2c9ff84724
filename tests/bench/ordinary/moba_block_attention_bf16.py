"""MoBA: keys' means by blocks of 128, each query keeps its own block and the three best before it, attention under
that mask, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
HEADS = 16
TOKENS = 2048
DIM = 128
BLOCK = 128
KEPT = 3


class Model(nn.Module):
    def __init__(self, block, kept):
        super().__init__()
        self.block, self.kept = block, kept

    def forward(self, q, k, v):
        b, h, t, d = q.shape
        n = t // self.block
        means = k.view(b, h, n, self.block, d).float().mean(3)
        gate = q.float() @ means.transpose(-1, -2)
        own = torch.arange(t, device=q.device) // self.block
        blocks = torch.arange(n, device=q.device)
        gate = gate.masked_fill(blocks[None, :] >= own[:, None], float("-inf"))
        best = gate.topk(self.kept, dim=-1)
        chosen = torch.zeros_like(gate, dtype=torch.bool).scatter(-1, best.indices, best.values > float("-inf"))
        chosen = chosen | (blocks[None, :] == own[:, None])
        mask = chosen.repeat_interleave(self.block, dim=-1)
        mask = mask & torch.ones(t, t, dtype=torch.bool, device=q.device).tril()
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def get_inputs():
    return [torch.randn(BATCH, HEADS, TOKENS, DIM, dtype=torch.bfloat16) for _ in range(3)]


def get_init_inputs():
    return [BLOCK, KEPT]
