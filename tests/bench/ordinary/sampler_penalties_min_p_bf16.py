"""Logits of a batch on their way to sampling: repetition penalty by history, temperature, the best 50 kept, min-p,
probabilities, bf16."""

import torch
import torch.nn as nn

BATCH = 128
VOCABULARY = 151936
HISTORY = 512
TOP = 50


class Model(nn.Module):
    def __init__(self, top):
        super().__init__()
        self.top = top

    def forward(self, logits, history, penalty, temperature):
        scores = logits.float()
        seen = torch.gather(scores, 1, history)
        seen = torch.where(seen < 0, seen * penalty[:, None], seen / penalty[:, None])
        scores = scores.scatter(1, history, seen)
        scores = scores / temperature[:, None]
        kth = torch.topk(scores, self.top, dim=-1).values[:, -1:]
        scores = scores.masked_fill(scores < kth, float("-inf"))
        probs = torch.softmax(scores, dim=-1)
        limit = 0.05 * probs.max(dim=-1, keepdim=True).values
        probs = torch.where(probs < limit, torch.zeros_like(probs), probs)
        return probs / probs.sum(dim=-1, keepdim=True)


def get_inputs():
    return [
        3 * torch.randn(BATCH, VOCABULARY, dtype=torch.bfloat16),
        torch.randint(0, VOCABULARY, (BATCH, HISTORY)),
        1.0 + 0.3 * torch.rand(BATCH),
        0.6 + 0.6 * torch.rand(BATCH),
    ]


def get_init_inputs():
    return [TOP]
