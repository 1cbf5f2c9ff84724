"""Native sparse attention: keys pooled by blocks, scores of groups of heads added, the best blocks' mask. bf16."""

import torch
from torch import nn

BATCH, HEADS, KV, SEQ, HEAD, BLOCK, TOP = 2, 16, 4, 2048, 128, 64, 8


class Model(nn.Module):
    def forward(self, q, k):
        pooled = k.view(BATCH, KV, SEQ // BLOCK, BLOCK, HEAD).float().mean(3).to(k.dtype)
        q = q.view(BATCH, KV, HEADS // KV, SEQ, HEAD)
        scores = torch.matmul(q, pooled[:, :, None].transpose(-2, -1)).float() * HEAD**-0.5
        i = torch.arange(SEQ, device=q.device)
        block = torch.arange(SEQ // BLOCK, device=q.device)
        future = block[None, :] * BLOCK > i[:, None]
        probs = torch.softmax(scores.masked_fill(future, float("-inf")), -1).sum(2)
        probs = probs + (block[None, :] == (i // BLOCK)[:, None]).float() * 1e4
        least = probs.topk(TOP, -1).values[..., -1:]
        return (probs >= least) & ~future, probs


def get_inputs():
    q = torch.randn(BATCH, HEADS, SEQ, HEAD, dtype=torch.bfloat16)
    return [q, torch.randn(BATCH, KV, SEQ, HEAD, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
