"""Mean over the sequence, then unit length: a sentence embedding."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 256
SEQUENCE = 128
FEATURES = 384


class Model(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.normalize(x.mean(dim=1), dim=-1)


def get_inputs():
    return [torch.randn(BATCH, SEQUENCE, FEATURES)]


def get_init_inputs():
    return []
