"""A step of a diffusion language model: probabilities of each place's best token, those not masked left alone, the
most confident masked ones of each sequence unveiled, logits in bf16."""

import torch
import torch.nn as nn

BATCH = 4
LENGTH = 64
VOCAB = 16384
MASK = 5


class Model(nn.Module):
    def __init__(self, unveiled):
        super().__init__()
        self.unveiled = unveiled

    def forward(self, logits, tokens):
        x = logits.float()
        best = x.argmax(-1)
        logp = x.amax(-1) - x.logsumexp(-1)
        masked = tokens == MASK
        second = x.masked_fill(torch.arange(x.shape[-1], device=x.device) == best[..., None], float("-inf")).amax(-1)
        margin = x.amax(-1) - second
        confidence = torch.where(masked, logp, float("-inf"))
        chosen = confidence.topk(self.unveiled, -1).indices
        unveil = torch.zeros_like(masked).scatter(1, chosen, True) & masked
        return torch.where(unveil, best, tokens), confidence, margin


def get_inputs():
    tokens = torch.randint(0, 10, (BATCH, LENGTH))
    return [(2 * torch.randn(BATCH, LENGTH, VOCAB)).to(torch.bfloat16), tokens]


def get_init_inputs():
    return [8]
