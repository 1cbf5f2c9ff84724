"""A step of SOAP: the gradient in the preconditioner's basis, Adam there, and back (TF32 allowed)."""

import torch
from torch import nn

ROWS, COLUMNS = 2048, 1024


class Model(nn.Module):
    def forward(self, p, g, ql, qr, m, v, left):
        r = ql.t() @ g @ qr
        m = 0.95 * m + 0.05 * g
        rm = ql.t() @ m @ qr
        v = 0.95 * v + 0.05 * r * r
        u = ql @ (rm / (v.sqrt() + 1e-8)) @ qr.t()
        left = 0.95 * left + 0.05 * (g @ g.t())
        return p - 3e-3 * u, m, v, left


def get_inputs():
    p, g, m = (torch.randn(ROWS, COLUMNS) for _ in range(3))
    ql = torch.randn(ROWS, ROWS) * ROWS**-0.5
    qr = torch.randn(COLUMNS, COLUMNS) * COLUMNS**-0.5
    return [p, g, ql, qr, m, torch.rand(ROWS, COLUMNS), torch.randn(ROWS, ROWS)]


def get_init_inputs():
    return []
