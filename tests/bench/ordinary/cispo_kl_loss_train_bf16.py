"""CISPO: clipped and detached importance weights on token log-probabilities from logits, a KL term, an entropy bonus,
by sequence, trained, bf16."""

import torch
import torch.nn as nn

BATCH = 8
STEPS = 255
VOCAB = 32000


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(0.9))

    def forward(self, logits, tokens, old, reference, advantage, mask):
        logits = logits.float() / self.temperature
        logp_all = torch.log_softmax(logits, dim=-1)
        logp = logp_all.gather(-1, tokens[..., None]).squeeze(-1)
        entropy = -(logp_all.exp() * logp_all).sum(-1)
        ratio = torch.exp((logp - old).clamp(-20, 20)).detach().clamp(0.0, 5.0)
        gap = (reference - logp).clamp(-10, 10)
        kl = torch.exp(gap) - gap - 1
        per_token = -ratio * advantage[:, None] * logp + 0.04 * kl - 0.001 * entropy
        return (per_token * mask).sum() / mask.sum().clamp(min=1)


def get_inputs():
    return [
        2 * torch.randn(BATCH, STEPS, VOCAB, dtype=torch.bfloat16),
        torch.randint(0, VOCAB, (BATCH, STEPS)),
        -10 - torch.rand(BATCH, STEPS),
        -10 - torch.rand(BATCH, STEPS),
        torch.randn(BATCH),
        (torch.rand(BATCH, STEPS) > 0.2).float(),
    ]


def get_init_inputs():
    return []
