"""A detector's neck: a coarse map upsampled and joined to a fine one, a C2f block of folded convolutions with SiLU,
fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 16
FINE = 128
COARSE = 256
SIDE = 40


class Conv(nn.Module):
    def __init__(self, inp, out, k):
        super().__init__()
        self.conv = nn.Conv2d(inp, out, k, padding=k // 2, dtype=torch.float16)

    def forward(self, x):
        return F.silu(self.conv(x))


class Model(nn.Module):
    def __init__(self, fine, coarse):
        super().__init__()
        self.first = Conv(fine + coarse, fine, 1)
        self.a = nn.ModuleList([Conv(fine // 2, fine // 2, 3) for _ in range(2)])
        self.b = nn.ModuleList([Conv(fine // 2, fine // 2, 3) for _ in range(2)])
        self.last = Conv(2 * fine, fine, 1)

    def forward(self, fine, coarse):
        x = torch.cat([F.interpolate(coarse, scale_factor=2, mode="nearest"), fine], dim=1)
        parts = list(self.first(x).chunk(2, dim=1))
        for a, b in zip(self.a, self.b, strict=True):
            parts.append(parts[-1] + b(a(parts[-1])))
        return self.last(torch.cat(parts, dim=1))


def get_inputs():
    return [
        torch.randn(BATCH, FINE, 2 * SIDE, 2 * SIDE, dtype=torch.float16),
        torch.randn(BATCH, COARSE, SIDE, SIDE, dtype=torch.float16),
    ]


def get_init_inputs():
    return [FINE, COARSE]
