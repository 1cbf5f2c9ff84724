"""Fused linear cross entropy in chunks of tokens, forward and gradients of hidden states and weight, bf16."""

import torch
from torch import nn

TOKENS, DIM, VOCAB, CHUNKS = 2048, 1024, 16000, 4


class Model(nn.Module):
    def forward(self, hidden, weight, target):
        losses, grads, total = [], [], None
        for h, t in zip(hidden.chunk(CHUNKS), target.chunk(CHUNKS), strict=True):
            logits = (h @ weight.t()).float()
            lse = torch.logsumexp(logits, -1, keepdim=True)
            losses.append((lse - logits.gather(1, t[:, None])).sum())
            d = torch.exp(logits - lse)
            hot = torch.arange(VOCAB, device=h.device)[None, :] == t[:, None]
            d = ((d - hot.float()) / TOKENS).to(h.dtype)
            grads.append(d @ weight)
            dw = d.t() @ h
            total = dw.float() if total is None else total + dw.float()
        return torch.stack(losses).sum() / TOKENS, torch.cat(grads), total


def get_inputs():
    h = torch.randn(TOKENS, DIM, dtype=torch.bfloat16)
    return [h, torch.randn(VOCAB, DIM, dtype=torch.bfloat16) * DIM**-0.5, torch.randint(0, VOCAB, (TOKENS,))]


def get_init_inputs():
    return []
