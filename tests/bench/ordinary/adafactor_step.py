"""One step of Adafactor for a bf16 matrix: factored second moments, clipped update, weight decay, relative step."""

import torch
from torch import nn

ROWS, COLS, BETA, RATE = 4096, 1536, 0.98, 1e-3


class Model(nn.Module):
    def forward(self, weight, grad, row, col):
        g = grad.float()
        square = g * g + 1e-30
        row = BETA * row + (1 - BETA) * square.mean(1)
        col = BETA * col + (1 - BETA) * square.mean(0)
        factor = torch.rsqrt(row / row.mean())[:, None] * torch.rsqrt(col)[None, :]
        update = g * factor
        update = update / (update.pow(2).mean().sqrt() / 1.0).clamp(min=1.0)
        w = weight.float()
        step = RATE * w.pow(2).mean().sqrt().clamp(min=1e-3)
        return (w * (1 - 0.01 * RATE) - step * update).to(weight.dtype), row, col


def get_inputs():
    weight, grad = torch.randn(ROWS, COLS, dtype=torch.bfloat16), torch.randn(ROWS, COLS, dtype=torch.bfloat16)
    return [weight, grad, torch.rand(ROWS) + 0.5, torch.rand(COLS) + 0.5]


def get_init_inputs():
    return []
