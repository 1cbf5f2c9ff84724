"""Exponential average of a model's bf16 weights in fp32 shadows with a warm-up, and what is served in bf16."""

import torch
from torch import nn

DIM, HIDDEN, LAYERS = 1024, 2816, 3


class Model(nn.Module):
    def forward(self, step, *tensors):
        decay = torch.minimum(torch.full_like(step, 0.9999), (1 + step) / (10 + step))
        half = len(tensors) // 2
        shadows = [s + (1 - decay) * (w.float() - s) for w, s in zip(tensors[:half], tensors[half:], strict=True)]
        gap = (
            torch.stack([(s - w.float()).pow(2).sum() for w, s in zip(tensors[:half], shadows, strict=True)])
            .sum()
            .sqrt()
        )
        return (*shadows, *[s.to(torch.bfloat16) for s in shadows], gap)


def get_inputs():
    shapes = [(HIDDEN, DIM), (DIM, HIDDEN), (DIM, DIM), (DIM,)] * LAYERS
    weights = [torch.randn(s, dtype=torch.bfloat16) for s in shapes]
    return [torch.tensor(500.0), *weights, *[torch.randn(s) for s in shapes]]


def get_init_inputs():
    return []
