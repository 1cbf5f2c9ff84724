"""A step of AdEMAMix: a fast and a slow moving average of gradients, a second moment, decoupled decay, bf16
parameters and fp32 states."""

import torch
import torch.nn as nn

ROWS = 1024
COLS = 1536


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.b1, self.b2, self.b3, self.alpha = 0.9, 0.999, 0.9999, 5.0

    def forward(self, p, grad, fast, slow, second, step):
        g = grad.float()
        fast = torch.lerp(g, fast, self.b1)
        slow = torch.lerp(g, slow, self.b3)
        second = self.b2 * second + (1 - self.b2) * g * g
        unbiased = fast / (1 - self.b1**step)
        denom = (second / (1 - self.b2**step)).sqrt() + 1e-8
        update = (unbiased + self.alpha * slow) / denom
        weight = p.float()
        new = weight - 3e-4 * (update + 0.1 * weight)
        return new.to(torch.bfloat16), fast, slow, second


def get_inputs():
    return [
        torch.randn(ROWS, COLS, dtype=torch.bfloat16),
        torch.randn(ROWS, COLS, dtype=torch.bfloat16),
        0.1 * torch.randn(ROWS, COLS),
        0.1 * torch.randn(ROWS, COLS),
        torch.rand(ROWS, COLS) + 0.01,
        torch.full((), 100.0),
    ]


def get_init_inputs():
    return []
