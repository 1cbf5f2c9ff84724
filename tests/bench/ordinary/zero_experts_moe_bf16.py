"""Experts of which some compute nothing: a router with a bias that only chooses, the best two of twelve, eight of them
SwiGLUs and four the token itself, a norm before and a residual, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 1024
WIDTH = 1024
HIDDEN = 768
EXPERTS = 8
IDLE = 4


class Model(nn.Module):
    def __init__(self, width, hidden, experts, idle):
        super().__init__()
        b = torch.bfloat16
        self.experts = experts
        self.norm = nn.Parameter(torch.ones(width, dtype=b))
        self.router = nn.Linear(width, experts + idle, bias=False, dtype=torch.float32)
        self.register_buffer("bias", 0.01 * torch.randn(experts + idle))
        self.w1 = nn.Parameter(0.03 * torch.randn(experts, width, 2 * hidden, dtype=b))
        self.w2 = nn.Parameter(0.03 * torch.randn(experts, hidden, width, dtype=b))

    def forward(self, x):
        y = x.float()
        n = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.norm
        scores = self.router(n.float()).softmax(-1)
        chosen = (scores + self.bias).topk(2, -1).indices
        kept = torch.zeros_like(scores).scatter(1, chosen, scores.gather(1, chosen)) * 1.5
        gate, value = torch.bmm(n.expand(self.experts, -1, -1), self.w1).chunk(2, -1)
        made = torch.bmm(F.silu(gate) * value, self.w2)
        real = (made.float() * kept[:, : self.experts].t()[:, :, None]).sum(0)
        idle = kept[:, self.experts :].sum(-1, keepdim=True) * n.float()
        return x + (real + idle).to(x.dtype)


def get_inputs():
    return [torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HIDDEN, EXPERTS, IDLE]
