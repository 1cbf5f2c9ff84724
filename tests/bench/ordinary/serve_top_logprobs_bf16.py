"""What a server returns with each token: logits scaled by temperature and biased, log-probabilities, that of the token
taken with its rank, and the twenty best with their tokens, bf16 logits."""

import torch
import torch.nn as nn

REQUESTS = 256
VOCABULARY = 151936
SHOWN = 20


class Model(nn.Module):
    def __init__(self, shown):
        super().__init__()
        self.shown = shown

    def forward(self, logits, bias, temperature, taken):
        scaled = (logits.float() + bias) / temperature[:, None]
        logprobs = scaled - torch.logsumexp(scaled, -1, keepdim=True)
        chosen = logprobs.gather(-1, taken[:, None])
        rank = (logprobs > chosen).sum(-1) + 1
        best = logprobs.topk(self.shown, dim=-1)
        entropy = -(logprobs.exp() * logprobs).sum(-1)
        return chosen.squeeze(-1), rank, best.values, best.indices, entropy


def get_inputs():
    return [
        3 * torch.randn(REQUESTS, VOCABULARY, dtype=torch.bfloat16),
        torch.randn(VOCABULARY),
        torch.rand(REQUESTS) + 0.5,
        torch.randint(0, VOCABULARY, (REQUESTS,)),
    ]


def get_init_inputs():
    return [SHOWN]
