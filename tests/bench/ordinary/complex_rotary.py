"""Llama's original rotary embedding by complex numbers."""

import torch
from torch import nn

BATCH, SEQ, HEADS, HEAD = 4, 4096, 32, 128


class Model(nn.Module):
    def forward(self, q, k, freqs):
        out = []
        for x in (q, k):
            z = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
            z = z * freqs[None, :, None, :]
            out.append(torch.view_as_real(z).flatten(3).type_as(x))
        return tuple(out)


def get_inputs():
    q, k = (torch.randn(BATCH, SEQ, HEADS, HEAD, dtype=torch.bfloat16) for _ in range(2))
    angles = torch.rand(SEQ, HEAD // 2) * 6.28
    return [q, k, torch.polar(torch.ones_like(angles), angles)]


def get_init_inputs():
    return []
