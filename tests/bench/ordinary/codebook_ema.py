"""Moving averages of a codebook: counts and sums of the vectors that chose each code, smoothed, and the new codes."""

import torch
from torch import nn

VECTORS, CODES, D, DECAY = 65536, 1024, 64, 0.99


class Model(nn.Module):
    def forward(self, x, chosen, count, total):
        ones = torch.ones(x.shape[0], dtype=x.dtype, device=x.device)
        new = torch.zeros_like(count).index_add(0, chosen, ones)
        summed = torch.zeros_like(total).index_add(0, chosen, x)
        count = DECAY * count + (1 - DECAY) * new
        total = DECAY * total + (1 - DECAY) * summed
        n = count.sum()
        smooth = (count + 1e-5) / (n + CODES * 1e-5) * n
        return total / smooth.unsqueeze(1), count, total, (new > 0).sum()


def get_inputs():
    x = torch.randn(VECTORS, D)
    return [x, torch.randint(0, CODES, (VECTORS,)), torch.rand(CODES) * 60 + 1, torch.randn(CODES, D)]


def get_init_inputs():
    return []
