"""MXFP4 weights: two E2M1 numbers a byte by a table, a power of two for every 32 of them, times bf16 activations."""

import torch
from torch import nn

BATCH, D, OUT, GROUP = 16, 4096, 4096, 32
VALUES = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", torch.tensor(VALUES, dtype=torch.bfloat16))

    def forward(self, x, blocks, exponents):
        low, high = (blocks & 0x0F).long(), (blocks >> 4).long()
        w = torch.stack([self.table[low], self.table[high]], dim=-1).flatten(-2)
        scale = torch.exp2(exponents.float() - 127).to(torch.bfloat16)
        w = (w.view(OUT, D // GROUP, GROUP) * scale.unsqueeze(-1)).view(OUT, D)
        return x @ w.t()


def get_inputs():
    x = torch.randn(BATCH, D, dtype=torch.bfloat16)
    blocks = torch.randint(0, 256, (OUT, D // 2), dtype=torch.uint8)
    return [x, blocks, torch.randint(118, 128, (OUT, D // GROUP), dtype=torch.uint8)]


def get_init_inputs():
    return []
