"""Sampling by Gumbel noise after temperature and a min-p filter."""

import torch
from torch import nn

BATCH, VOCAB = 128, 128256


class Model(nn.Module):
    def forward(self, logits, temperature, min_p, noise):
        x = logits / temperature[:, None]
        top = x.amax(-1, keepdim=True)
        keep = x - top >= torch.log(min_p)[:, None]
        gumbel = -torch.log(-torch.log(noise))
        pick = torch.where(keep, x + gumbel, torch.full_like(x, float("-inf"))).argmax(-1)
        kept = torch.where(keep, x, torch.full_like(x, float("-inf")))
        chance = torch.softmax(kept, -1).gather(1, pick[:, None]).squeeze(1)
        return pick, chance, keep.sum(-1)


def get_inputs():
    noise = torch.rand(BATCH, VOCAB).clamp(1e-6, 1 - 1e-6)
    return [3 * torch.randn(BATCH, VOCAB), 0.5 + torch.rand(BATCH), 0.01 + 0.1 * torch.rand(BATCH), noise]


def get_init_inputs():
    return []
