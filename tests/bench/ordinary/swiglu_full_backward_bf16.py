"""Backward of down(silu(gate(x)) * up(x)) written out: gradients of the input and of the three weights."""

import torch
import torch.nn as nn

T, D, HID = 2048, 1024, 2816


class Model(nn.Module):
    def __init__(self, d, hid):
        super().__init__()
        self.wg = nn.Parameter(torch.randn(hid, d) * d**-0.5)
        self.wu = nn.Parameter(torch.randn(hid, d) * d**-0.5)
        self.wd = nn.Parameter(torch.randn(d, hid) * hid**-0.5)
        self.to(torch.bfloat16)

    def forward(self, x, dy):
        g, u = x @ self.wg.t(), x @ self.wu.t()
        s = torch.sigmoid(g.float())
        a = (g.float() * s).to(x.dtype)
        dh = dy @ self.wd
        dwd = dy.t() @ (a * u)
        du = dh * a
        dg = (dh.float() * u.float() * (s * (1 + g.float() * (1 - s)))).to(x.dtype)
        dx = dg @ self.wg + du @ self.wu
        return dx, dg.t() @ x, du.t() @ x, dwd


def get_inputs():
    return [torch.randn(T, D, dtype=torch.bfloat16), torch.randn(T, D, dtype=torch.bfloat16)]


def get_init_inputs():
    return [D, HID]
