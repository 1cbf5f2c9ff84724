"""Token and position embeddings added, and their layer norm."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def __init__(self, vocabulary, positions, width):
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, width).half()
        self.positions = nn.Parameter(torch.randn(positions, width).half())
        self.norm = nn.LayerNorm(width).half()

    def forward(self, ids):
        return self.norm(self.tokens(ids) + self.positions)


def get_inputs():
    return [torch.randint(0, 30522, (64, 512))]


def get_init_inputs():
    return [30522, 512, 1024]
