"""Speculative decoding: acceptance of drafted tokens and the residual distribution."""

import torch
from torch import nn

BATCH, DRAFT, VOCAB = 64, 5, 32000


class Model(nn.Module):
    def forward(self, p, q, tokens, u):
        pt = p.gather(-1, tokens[..., None]).squeeze(-1)
        qt = q.gather(-1, tokens[..., None]).squeeze(-1)
        accept = u < (pt / qt.clamp(min=1e-20)).clamp(max=1.0)
        kept = torch.cumprod(accept.to(torch.int64), dim=1)
        length = kept.sum(1)
        residual = (p - q).clamp(min=0)
        total = residual.sum(-1, keepdim=True)
        residual = torch.where(total > 0, residual / total.clamp(min=1e-20), p)
        return length, kept, residual


def get_inputs():
    p = torch.softmax(torch.randn(BATCH, DRAFT, VOCAB), -1)
    q = torch.softmax(torch.randn(BATCH, DRAFT, VOCAB), -1)
    return [p, q, torch.randint(0, VOCAB, (BATCH, DRAFT)), torch.rand(BATCH, DRAFT)]


def get_init_inputs():
    return []
