"""A step of PSGD with Kronecker factors: momentum, a whitened gradient by two triangular factors, the factors' own
update from products of what they whiten, a clipped step with weight decay, TF32 allowed."""

import torch
import torch.nn as nn

ROWS = 2048
COLS = 1024


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def turned(self, q, term, size):
        scale = 0.1 / (term.abs().sum(-1).amax() + 1e-12)
        return q - scale * torch.triu(term) @ q

    def forward(self, p, grad, momentum, left, right, probe):
        m = 0.95 * momentum + 0.05 * grad
        noisy = m + 1e-6 * m.abs().mean() * probe
        a = left @ noisy @ right.t()
        inverse = left.t() @ (left @ probe @ right.t()) @ right
        b = probe / (inverse.square().mean().sqrt() + 1e-8)
        left_new = self.turned(left, a @ a.t() - b @ b.t(), p.shape[1])
        right_new = self.turned(right, a.t() @ a - b.t() @ b, p.shape[0])
        step = left_new.t() @ (left_new @ m @ right_new.t()) @ right_new
        step = step * (1.1 / (step.square().mean().sqrt() + 1e-8)).clamp(max=1.0)
        return p - 3e-4 * (step + 0.1 * p), m, left_new, right_new


def get_inputs():
    return [
        torch.randn(ROWS, COLS),
        0.1 * torch.randn(ROWS, COLS),
        0.1 * torch.randn(ROWS, COLS),
        torch.eye(ROWS) + 0.01 * torch.randn(ROWS, ROWS).triu(),
        torch.eye(COLS) + 0.01 * torch.randn(COLS, COLS).triu(),
        torch.randn(ROWS, COLS),
    ]


def get_init_inputs():
    return []
