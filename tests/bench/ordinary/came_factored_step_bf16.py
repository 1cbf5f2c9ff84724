"""A step of CAME: factored second moments, an update clipped by its root mean square, a factored confidence, bf16
parameters."""

import torch
import torch.nn as nn

ROWS = 4096
COLS = 3072


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def factor(self, row, col):
        return torch.rsqrt(row / row.mean() + 1e-30)[:, None] * torch.rsqrt(col + 1e-30)[None, :]

    def forward(self, p, grad, m, row, col, res_row, res_col):
        g = grad.float()
        sq = g.square() + 1e-30
        row = 0.9 * row + 0.1 * sq.mean(1)
        col = 0.9 * col + 0.1 * sq.mean(0)
        update = self.factor(row, col) * g
        update = update / (update.square().mean().sqrt() / 1.0).clamp(min=1.0)
        m = 0.9 * m + 0.1 * update
        res = (update - m).square() + 1e-16
        res_row = 0.99 * res_row + 0.01 * res.mean(1)
        res_col = 0.99 * res_col + 0.01 * res.mean(0)
        step = self.factor(res_row, res_col) * m
        new = p.float() * (1 - 1e-3 * 0.1) - 1e-3 * step
        return new.to(p.dtype), m, row, col, res_row, res_col


def get_inputs():
    return [
        torch.randn(ROWS, COLS, dtype=torch.bfloat16),
        torch.randn(ROWS, COLS, dtype=torch.bfloat16),
        0.1 * torch.randn(ROWS, COLS),
        torch.rand(ROWS) + 0.5,
        torch.rand(COLS) + 0.5,
        torch.rand(ROWS) + 0.5,
        torch.rand(COLS) + 0.5,
    ]


def get_init_inputs():
    return []
