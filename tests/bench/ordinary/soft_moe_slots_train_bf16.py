"""Soft MoE: slots of experts as weighed means of normalised tokens, their feed-forward by batched products, and tokens
as weighed means of slots, a mean squared error, trained in bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
TOKENS = 196
WIDTH = 192
EXPERTS = 8
SLOTS = 16
HIDDEN = 384


class Model(nn.Module):
    def __init__(self, width, experts, slots, hidden):
        super().__init__()
        self.experts, self.slots = experts, slots
        self.phi = nn.Parameter(torch.randn(width, experts * slots) / width**0.5)
        self.scale = nn.Parameter(torch.ones(()))
        self.up = nn.Parameter(torch.randn(experts, width, hidden) / width**0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) / hidden**0.5)
        self.bfloat16()

    def forward(self, x, target):
        b, _, c = x.shape
        keys = F.normalize(x.float(), dim=-1)
        phi = self.scale.float() * F.normalize(self.phi.float(), dim=0)
        logits = keys @ phi
        dispatch, combine = logits.softmax(1).to(x.dtype), logits.softmax(2).to(x.dtype)
        slots = (dispatch.transpose(1, 2) @ x).reshape(b, self.experts, self.slots, c)
        slots = slots.transpose(0, 1).reshape(self.experts, -1, c)
        y = torch.bmm(F.gelu(torch.bmm(slots, self.up)), self.down)
        y = y.reshape(self.experts, b, self.slots, c).transpose(0, 1).reshape(b, -1, c)
        return F.mse_loss((x + combine @ y).float(), target.float())


def get_inputs():
    return [
        torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return [WIDTH, EXPERTS, SLOTS, HIDDEN]
