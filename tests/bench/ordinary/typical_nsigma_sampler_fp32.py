"""A sampler: the top-n-sigma filter, then locally typical tokens by a sort of their surprise, renormalised, a token by
Gumbel noise, fp32."""

import torch
import torch.nn as nn

BATCH = 128
VOCAB = 50257


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.sigmas, self.mass = 1.5, 0.9

    def forward(self, logits, temperature, gumbel):
        low = logits.amax(-1, keepdim=True) - self.sigmas * logits.std(-1, keepdim=True)
        logits = logits.masked_fill(logits < low, -1e9) / temperature[:, None]
        logp = torch.log_softmax(logits, dim=-1)
        p = logp.exp()
        entropy = -(p * logp).sum(-1, keepdim=True)
        odd, order = (-logp - entropy).abs().sort(dim=-1)
        mass = p.gather(-1, order).cumsum(-1)
        last = (mass < self.mass).sum(-1, keepdim=True).clamp(max=logits.shape[-1] - 1)
        kept = (-logp - entropy).abs() <= odd.gather(-1, last)
        final = logp.masked_fill(~kept, float("-inf"))
        token = (final + gumbel).argmax(-1)
        return token, kept.sum(-1), entropy.squeeze(-1)


def get_inputs():
    return [
        2 * torch.randn(BATCH, VOCAB),
        0.5 + torch.rand(BATCH),
        -torch.log(-torch.log(torch.rand(BATCH, VOCAB).clamp(1e-6, 1 - 1e-6))),
    ]


def get_init_inputs():
    return []
