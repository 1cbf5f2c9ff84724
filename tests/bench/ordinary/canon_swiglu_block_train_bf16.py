"""A block with Canon layers: a causal convolution of four tokens with a residual before and within a SwiGLU of normed
tokens, the squared error of what comes next, trained, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
TOKENS = 1024
WIDTH = 1024
HIDDEN = 2816


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        b = torch.bfloat16
        self.norm = nn.Parameter(torch.ones(width, dtype=b))
        self.before = nn.Parameter(0.2 * torch.randn(width, 1, 4, dtype=b))
        self.within = nn.Parameter(0.2 * torch.randn(2 * hidden, 1, 4, dtype=b))
        self.up = nn.Linear(width, 2 * hidden, bias=False, dtype=b)
        self.down = nn.Linear(hidden, width, bias=False, dtype=b)

    def canon(self, x, weight):
        y = F.conv1d(F.pad(x.transpose(1, 2), (3, 0)), weight, groups=x.shape[-1])
        return x + y.transpose(1, 2)

    def forward(self, x, target):
        y = x.float()
        n = (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.norm
        h = self.canon(self.up(self.canon(n, self.before)), self.within)
        gate, value = h.chunk(2, -1)
        out = x + self.down(F.silu(gate) * value)
        return F.mse_loss(out.float(), target.float())


def get_inputs():
    return [torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16) for _ in range(2)]


def get_init_inputs():
    return [WIDTH, HIDDEN]
