"""A mixture of eight experts, each token to two with shares by their gates, tokens gathered into slots of fixed size
and scattered back, load-balancing and router-z losses, trained, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 4096
WIDTH = 1024
HIDDEN = 1024
EXPERTS = 8
CAPACITY = 1280


class Model(nn.Module):
    def __init__(self, width, hidden, experts, capacity):
        super().__init__()
        b = torch.bfloat16
        self.capacity, self.experts = capacity, experts
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter((torch.randn(experts, width, hidden) / width**0.5).to(b))
        self.down = nn.Parameter((torch.randn(experts, hidden, width) / hidden**0.5).to(b))

    def forward(self, x, target):
        logits = self.router(x.float())
        probs = logits.softmax(-1)
        best = probs.topk(2, dim=-1)
        share = best.values / best.values.sum(-1, keepdim=True)
        expert = best.indices.flatten()
        taken = F.one_hot(expert, self.experts)
        place = (taken.cumsum(0) * taken).sum(-1) - 1
        fits = place < self.capacity
        slot = torch.where(fits, expert * self.capacity + place, self.experts * self.capacity)
        tokens = x.repeat_interleave(2, dim=0)
        slots = x.new_zeros(self.experts * self.capacity + 1, x.shape[1]).index_copy(0, slot, tokens)
        y = slots[:-1].view(self.experts, self.capacity, -1)
        y = torch.bmm(F.gelu(torch.bmm(y, self.up), approximate="tanh"), self.down).flatten(0, 1)
        y = torch.cat((y, torch.zeros_like(y[:1])))[slot]
        weight = share.flatten() * fits
        out = x + (y * weight[:, None].to(y.dtype)).view(x.shape[0], 2, -1).sum(1)
        balance = self.experts * (taken.float().mean(0) * probs.mean(0)).sum()
        z = torch.logsumexp(logits, -1).square().mean()
        return F.mse_loss(out.float(), target.float()) + 0.01 * balance + 0.001 * z


def get_inputs():
    b = torch.bfloat16
    return [torch.randn(TOKENS, WIDTH, dtype=b), torch.randn(TOKENS, WIDTH, dtype=b)]


def get_init_inputs():
    return [WIDTH, HIDDEN, EXPERTS, CAPACITY]
