"""Muon's Newton-Schulz orthogonalisation of a momentum, five steps in bf16."""

import torch
from torch import nn

ROWS, COLS, STEPS = 1024, 4096, 5


class Model(nn.Module):
    def forward(self, grad, momentum):
        momentum = torch.lerp(momentum, grad, 0.05)
        x = torch.lerp(grad, momentum, 0.95).bfloat16()
        x = x / (x.norm() + 1e-7)
        for _ in range(STEPS):
            gram = x @ x.t()
            x = 3.4445 * x + (-4.7750 * gram + 2.0315 * gram @ gram) @ x
        return x, momentum


def get_inputs():
    return [torch.randn(ROWS, COLS), torch.randn(ROWS, COLS)]


def get_init_inputs():
    return []
