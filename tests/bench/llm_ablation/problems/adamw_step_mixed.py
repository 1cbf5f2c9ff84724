"""One AdamW step: float32 weights and moments, bfloat16 gradients."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, weight, gradient, first, second):
        wide = gradient.float()
        first = first * 0.9 + wide * 0.1
        second = second * 0.95 + wide * wide * 0.05
        step = (first / 0.271) / (torch.sqrt(second / 0.142625) + 1e-8)
        return weight * (1 - 3e-4 * 0.1) - 3e-4 * step, first, second


def get_inputs():
    shape = (4096, 4096)
    return [torch.randn(shape), torch.randn(shape).bfloat16(), torch.randn(shape), torch.rand(shape)]


def get_init_inputs():
    return []
