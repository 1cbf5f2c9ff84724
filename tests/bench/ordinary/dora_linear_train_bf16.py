"""A DoRA-adapted linear layer: the frozen weight plus a low-rank change, columns rescaled by learned magnitudes,
trained, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 4096
WIDTH = 4096
OUT = 4096
RANK = 32


class Model(nn.Module):
    def __init__(self, fan_in, fan_out, rank):
        super().__init__()
        w = torch.randn(fan_out, fan_in) * 0.02
        self.register_buffer("weight", w.bfloat16())
        self.a = nn.Parameter((torch.randn(rank, fan_in) / fan_in**0.5).bfloat16())
        self.b = nn.Parameter((torch.randn(fan_out, rank) * 0.02).bfloat16())
        self.magnitude = nn.Parameter(w.norm(dim=1).bfloat16())

    def forward(self, x):
        scaling = 2.0
        adapted = self.weight + scaling * (self.b @ self.a)
        norm = torch.linalg.vector_norm(adapted.float(), dim=1).to(x.dtype).detach()
        scale = (self.magnitude / norm).view(1, -1)
        base = F.linear(x, self.weight)
        low = F.linear(F.linear(x, self.a), self.b) * scaling
        return scale * (base + low)


def get_inputs():
    return [torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, OUT, RANK]
