"""SPLADE: logits over a vocabulary from a transformed, normalised hidden state, log(1 + ReLU) of them, the maximum
over the words of a text, and the expected number of operations, in bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
LENGTH = 64
WIDTH = 256
VOCAB = 8192


class Model(nn.Module):
    def __init__(self, width, vocab):
        super().__init__()
        self.transform = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)
        self.decoder = nn.Linear(width, vocab)
        self.bfloat16()

    def forward(self, hidden, mask):
        h = self.norm(F.gelu(self.transform(hidden)))
        weights = torch.log1p(torch.relu(self.decoder(h).float()))
        vectors = (weights * mask[..., None]).amax(1)
        flops = vectors.mean(0).square().sum()
        return vectors.to(hidden.dtype), flops


def get_inputs():
    lengths = torch.randint(LENGTH // 2, LENGTH, (BATCH, 1))
    mask = (torch.arange(LENGTH) < lengths).float()
    return [torch.randn(BATCH, LENGTH, WIDTH, dtype=torch.bfloat16), mask]


def get_init_inputs():
    return [WIDTH, VOCAB]
