"""A multi-token prediction step of DeepSeek-V3 up to its block: the next token's embedding and the hidden state, each
normalised, side by side through one product, then squared-ReLU MLP with a residual, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
TOKENS = 1024
WIDTH = 4096
VOCABULARY = 128000


class Model(nn.Module):
    def __init__(self, vocabulary, width):
        super().__init__()
        bf = torch.bfloat16
        self.embed = nn.Embedding(vocabulary, width, dtype=bf)
        self.enorm = nn.RMSNorm(width, eps=1e-6, dtype=bf)
        self.hnorm = nn.RMSNorm(width, eps=1e-6, dtype=bf)
        self.proj = nn.Linear(2 * width, width, bias=False, dtype=bf)
        self.norm = nn.RMSNorm(width, eps=1e-6, dtype=bf)
        self.up = nn.Linear(width, 2 * width, bias=False, dtype=bf)
        self.down = nn.Linear(2 * width, width, bias=False, dtype=bf)

    def forward(self, tokens, hidden):
        e = self.embed(tokens.roll(-1, dims=1))
        h = self.proj(torch.cat([self.enorm(e), self.hnorm(hidden)], dim=-1))
        return h + self.down(F.relu(self.up(self.norm(h))).square())


def get_inputs():
    return [
        torch.randint(0, VOCABULARY, (BATCH, TOKENS)),
        torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return [VOCABULARY, WIDTH]
