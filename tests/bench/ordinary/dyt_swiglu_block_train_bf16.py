"""A feed-forward block with a dynamic tanh in the place of its norm, SwiGLU, a residual with a learned scale, an
auxiliary loss, trained, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 4096
WIDTH = 1024
HIDDEN = 2752


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        b = torch.bfloat16
        self.alpha = nn.Parameter(torch.tensor(0.5, dtype=b))
        self.gamma = nn.Parameter(torch.ones(width, dtype=b))
        self.beta = nn.Parameter(torch.zeros(width, dtype=b))
        self.gate = nn.Linear(width, hidden, bias=False, dtype=b)
        self.up = nn.Linear(width, hidden, bias=False, dtype=b)
        self.down = nn.Linear(hidden, width, bias=False, dtype=b)
        self.scale = nn.Parameter(torch.full((width,), 0.1, dtype=b))

    def forward(self, x, target):
        n = torch.tanh(self.alpha * x) * self.gamma + self.beta
        y = x + self.scale * self.down(F.silu(self.gate(n)) * self.up(n))
        return F.smooth_l1_loss(y.float(), target.float())


def get_inputs():
    return [torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16), torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HIDDEN]
