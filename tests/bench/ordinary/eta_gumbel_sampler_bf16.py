"""Eta sampling: temperatures and a bias by token, probabilities below a bound by entropy left out, the choice by given
uniform numbers through Gumbel noise, its log-probability told, logits in bf16."""

import torch
import torch.nn as nn

ROWS = 16
VOCAB = 65536


class Model(nn.Module):
    def __init__(self, epsilon):
        super().__init__()
        self.epsilon = epsilon

    def forward(self, logits, bias, temperature, uniform):
        x = (logits.float() + bias) / temperature[:, None]
        logp = x.log_softmax(-1)
        p = logp.exp()
        entropy = -(p * logp).sum(-1, keepdim=True)
        eta = torch.minimum(torch.full_like(entropy, self.epsilon), self.epsilon**0.5 * torch.exp(-entropy))
        top = p.amax(-1, keepdim=True)
        kept = torch.where((p < eta) & (p < top), float("-inf"), logp)
        noise = -torch.log(-torch.log(uniform.clamp(1e-6, 1 - 1e-6)))
        token = (kept + noise).argmax(-1)
        told = logp.gather(-1, token[:, None]).squeeze(-1)
        return token, told, entropy.squeeze(-1), (kept > float("-inf")).sum(-1)


def get_inputs():
    return [
        (3 * torch.randn(ROWS, VOCAB)).to(torch.bfloat16),
        0.1 * torch.randn(VOCAB),
        torch.rand(ROWS) + 0.5,
        torch.rand(ROWS, VOCAB),
    ]


def get_init_inputs():
    return [3e-4]
