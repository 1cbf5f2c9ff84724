"""Griffin's recurrent block: a short causal convolution, two gates, the RG-LRU by doubling, a GELU gate, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
STEPS = 1024
WIDTH = 1536


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.conv = nn.Parameter(0.3 * torch.randn(width, 1, 4, dtype=torch.bfloat16))
        self.decay = nn.Parameter(torch.rand(width) + 0.5)
        self.gates = nn.Linear(width, 2 * width, dtype=torch.bfloat16)

    def forward(self, x, branch):
        steps = x.shape[1]
        x = F.conv1d(x.transpose(1, 2), self.conv, padding=3, groups=x.shape[2])[..., :steps].transpose(1, 2)
        r, i = torch.sigmoid(self.gates(x).float()).chunk(2, dim=-1)
        log_a = -8.0 * r * F.softplus(self.decay)
        a = torch.exp(log_a)
        h = torch.sqrt(1 - torch.exp(2 * log_a) + 1e-6) * i * x.float()
        shift = 1
        while shift < steps:
            h = h + a * F.pad(h, (0, 0, shift, 0))[:, :steps]
            a = a * F.pad(a, (0, 0, shift, 0), value=1.0)[:, :steps]
            shift *= 2
        return h.to(torch.bfloat16) * F.gelu(branch, approximate="tanh")


def get_inputs():
    return [
        torch.randn(BATCH, STEPS, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, STEPS, WIDTH, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return [WIDTH]
