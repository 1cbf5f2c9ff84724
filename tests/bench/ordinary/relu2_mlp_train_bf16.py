"""The MLP of the nanoGPT speed run: RMS norm without weight, product, squared ReLU, product, residual with a learned
factor, trained, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
TOKENS = 1024
WIDTH = 1024


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.fc = nn.Linear(width, 4 * width, bias=False, dtype=torch.bfloat16)
        self.proj = nn.Linear(4 * width, width, bias=False, dtype=torch.bfloat16)
        self.mix = nn.Parameter(torch.tensor([1.0, 0.1]))

    def forward(self, x, x0):
        x = self.mix[0].bfloat16() * x + self.mix[1].bfloat16() * x0
        h = F.rms_norm(x, (x.size(-1),))
        return x + self.proj(F.relu(self.fc(h)).square())


def get_inputs():
    return [torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16) for _ in range(2)]


def get_init_inputs():
    return [WIDTH]
