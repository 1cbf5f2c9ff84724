"""Eight steps of an LSTM with peepholes, fp16 weights, fp32 state."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, d):
        super().__init__()
        self.w = nn.Parameter((torch.randn(2 * d, 4 * d) * 0.05).half())
        self.p = nn.Parameter(torch.randn(3, d) * 0.1)

    def forward(self, x, h, c):
        outs = []
        for t in range(8):
            z = (torch.cat([x[:, t], h.half()], -1) @ self.w).float()
            i, f, g, o = z.chunk(4, -1)
            i = torch.sigmoid(i + self.p[0] * c)
            f = torch.sigmoid(f + self.p[1] * c + 1)
            c = f * c + i * torch.tanh(g)
            o = torch.sigmoid(o + self.p[2] * c)
            h = o * torch.tanh(c)
            outs.append(h)
        return torch.stack(outs, 1), c


def get_inputs():
    return [torch.randn(64, 8, 128).half(), torch.randn(64, 128), torch.randn(64, 128)]


def get_init_inputs():
    return [128]
