"""Linear with bias and exact GELU, as the first half of a ViT's MLP."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, D, HIDDEN = 16384, 1024, 4096


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(D, HIDDEN, dtype=torch.bfloat16)

    def forward(self, x):
        return F.gelu(self.fc(x))


def get_inputs():
    return [torch.randn(TOKENS, D, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
