"""GSPO from hidden states: logits of the vocabulary, log-probabilities of the tokens, ratios by sequence, clipped,
and the loss, trained, bf16."""

import torch
import torch.nn as nn

SEQUENCES = 8
TOKENS = 256
WIDTH = 2048
VOCABULARY = 32000


class Model(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.head = nn.Linear(width, vocabulary, bias=False, dtype=torch.bfloat16)

    def forward(self, hidden, tokens, old_logp, advantages, mask):
        logits = self.head(hidden).float() / 0.9
        logp = torch.log_softmax(logits, dim=-1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
        length = mask.sum(dim=-1).clamp(min=1)
        ratio = (((logp - old_logp) * mask).sum(dim=-1) / length).exp()
        clipped = ratio.clamp(1 - 3e-2, 1 + 4e-2)
        return -torch.minimum(ratio * advantages, clipped * advantages).mean()


def get_inputs():
    lengths = torch.randint(TOKENS // 2, TOKENS, (SEQUENCES, 1))
    return [
        torch.randn(SEQUENCES, TOKENS, WIDTH, dtype=torch.bfloat16),
        torch.randint(0, VOCABULARY, (SEQUENCES, TOKENS)),
        -10.5 + 0.3 * torch.randn(SEQUENCES, TOKENS),
        torch.randn(SEQUENCES),
        (torch.arange(TOKENS)[None, :] < lengths).float(),
    ]


def get_init_inputs():
    return [WIDTH, VOCABULARY]
