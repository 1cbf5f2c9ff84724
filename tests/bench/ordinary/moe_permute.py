"""Tokens sorted by expert, gathered, scaled, and scattered back by index_add."""

import torch
from torch import nn

TOKENS, D, EXPERTS, TOP = 8192, 2048, 64, 2


class Model(nn.Module):
    def forward(self, x, expert, weight):
        order = torch.argsort(expert.view(-1), stable=True)
        token = order // TOP
        rows = x[token] * weight.view(-1)[order].unsqueeze(-1).to(x.dtype)
        counts = torch.bincount(expert.view(-1), minlength=EXPERTS)
        out = torch.zeros(x.shape[0], x.shape[1], device=x.device)
        out = out.index_add(0, token, rows.float())
        return out.to(x.dtype), counts


def get_inputs():
    x = torch.randn(TOKENS, D, dtype=torch.bfloat16)
    return [x, torch.randint(0, EXPERTS, (TOKENS, TOP)), torch.rand(TOKENS, TOP)]


def get_init_inputs():
    return []
