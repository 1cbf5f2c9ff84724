"""Llama 4 feed-forward: a shared expert beside experts of one choice, whose input the router's sigmoid scales."""

import torch
import torch.nn as nn
import torch.nn.functional as F

T, D, HID, E = 512, 1024, 2048, 8


class Model(nn.Module):
    def __init__(self, width, hidden, experts):
        super().__init__()
        self.router = nn.Linear(width, experts, bias=False)
        self.shared_gate = nn.Linear(width, hidden, bias=False)
        self.shared_up = nn.Linear(width, hidden, bias=False)
        self.shared_down = nn.Linear(hidden, width, bias=False)
        self.gate_up = nn.Parameter(torch.randn(experts, width, 2 * hidden) * width**-0.5)
        self.down = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)
        self.to(torch.bfloat16)

    def forward(self, x):
        logits = self.router(x)
        top, index = torch.topk(logits, 1, dim=-1)
        scores = torch.full_like(logits, float("-inf")).scatter(1, index, top)
        scores = torch.sigmoid(scores.float()).to(x.dtype).t()
        routed = x.unsqueeze(0) * scores.unsqueeze(-1)
        gate, up = torch.bmm(routed, self.gate_up).chunk(2, dim=-1)
        out = torch.bmm(F.silu(gate) * up, self.down).sum(0)
        return out + self.shared_down(F.silu(self.shared_gate(x)) * self.shared_up(x))


def get_inputs():
    return [torch.randn(T, D, dtype=torch.bfloat16)]


def get_init_inputs():
    return [D, HID, E]
