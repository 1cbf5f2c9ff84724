"""AWQ-like 4-bit weights, two in a byte, groups of 128 with scale and zero point, fp16."""

import torch
from torch import nn

BATCH, D, OUT, GROUP = 8, 4096, 11008, 128


class Model(nn.Module):
    def forward(self, x, packed, scale, zero):
        low = (packed & 0xF).to(torch.float16)
        high = (packed >> 4).to(torch.float16)
        w = torch.stack([low, high], dim=-1).view(OUT, D // GROUP, GROUP)
        w = (w - zero.unsqueeze(-1)) * scale.unsqueeze(-1)
        return x @ w.view(OUT, D).t()


def get_inputs():
    x = torch.randn(BATCH, D, dtype=torch.float16)
    packed = torch.randint(0, 256, (OUT, D // 2), dtype=torch.uint8)
    scale = torch.rand(OUT, D // GROUP, dtype=torch.float16) * 0.01
    return [x, packed, scale, torch.randint(0, 16, (OUT, D // GROUP)).to(torch.float16)]


def get_init_inputs():
    return []
