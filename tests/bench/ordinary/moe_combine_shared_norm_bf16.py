"""What eight experts gave each token, gathered by slot and weighed, a shared expert under its gate, the residual, the
next RMSNorm, bf16."""

import torch
import torch.nn as nn

TOKENS = 4096
SLOTS = 34816
TOP = 8
WIDTH = 2048


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.gate = nn.Linear(width, 1, bias=False, dtype=torch.bfloat16)
        self.norm = nn.Parameter(torch.ones(width, dtype=torch.bfloat16))

    def forward(self, routed, slot, weight, shared, x, residual):
        picked = routed[slot].float()
        kept = (slot > 0).float() * weight
        y = (picked * kept[..., None]).sum(1) * 2.5
        y = y + torch.sigmoid(self.gate(x)).float() * shared.float()
        h = residual.float() + y
        normed = h * torch.rsqrt(h.square().mean(-1, keepdim=True) + 1e-6)
        return h.to(x.dtype), normed.to(x.dtype) * self.norm


def get_inputs():
    return [
        torch.randn(SLOTS, WIDTH, dtype=torch.bfloat16),
        torch.randint(0, SLOTS, (TOKENS, TOP)),
        torch.softmax(torch.randn(TOKENS, TOP), -1),
        torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16),
        torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16),
        torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return [WIDTH]
