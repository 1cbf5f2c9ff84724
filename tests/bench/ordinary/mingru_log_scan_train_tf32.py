"""A minGRU layer with its parallel scan in log space by logcumsumexp, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 16
SEQUENCE = 1024
WIDTH = 512


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.to_hidden_and_gate = nn.Linear(width, 2 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x):
        hidden, gate = self.to_hidden_and_gate(x).chunk(2, dim=-1)
        log_coeffs = -F.softplus(gate)
        log_z = -F.softplus(-gate)
        log_g = torch.where(hidden >= 0, (F.relu(hidden) + 0.5).log(), -F.softplus(-hidden))
        log_values = log_z + log_g
        a_star = log_coeffs.cumsum(dim=1)
        log_h = a_star + torch.logcumsumexp(log_values - a_star, dim=1)
        return self.out(log_h.exp())


def get_inputs():
    return [torch.randn(BATCH, SEQUENCE, WIDTH)]


def get_init_inputs():
    return [WIDTH]
