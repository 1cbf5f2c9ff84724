"""Adam whose states are fp8 (e4m3 and e5m2) with a scale for every 128 numbers, unpacked and packed again."""

import torch
from torch import nn

BLOCKS, BLOCK = 131072, 128


class Model(nn.Module):
    def forward(self, p, g, m8, ms, v8, vs):
        m = m8.float() * ms[:, None]
        v = v8.float() * vs[:, None]
        g = g.float()
        m = 0.9 * m + 0.1 * g
        v = 0.999 * v + 0.001 * g * g
        p = p - 1e-3 * (m / (v.sqrt() + 1e-8) + 0.1 * p)
        ms = m.abs().amax(-1).clamp(min=1e-12) / 448.0
        vs = v.amax(-1).clamp(min=1e-20) / 57344.0
        m8 = (m / ms[:, None]).to(torch.float8_e4m3fn)
        v8 = (v / vs[:, None]).to(torch.float8_e5m2)
        return p, m8, ms, v8, vs


def get_inputs():
    p = torch.randn(BLOCKS, BLOCK)
    g = torch.randn(BLOCKS, BLOCK, dtype=torch.bfloat16)
    m8 = (100 * torch.randn(BLOCKS, BLOCK)).clamp(-448, 448).to(torch.float8_e4m3fn)
    v8 = (1000 * torch.rand(BLOCKS, BLOCK)).to(torch.float8_e5m2)
    return [p, g, m8, 0.001 * torch.rand(BLOCKS), v8, 1e-5 * torch.rand(BLOCKS)]


def get_init_inputs():
    return []
