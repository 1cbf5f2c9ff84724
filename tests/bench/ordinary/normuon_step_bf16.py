"""A step of NorMuon: Nesterov momentum, five iterations of Newton and Schulz, a second moment for each neuron by which
rows are divided, the norm of before restored, decoupled decay, bf16."""

import torch
import torch.nn as nn

ROWS = 1024
COLS = 2048


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = 3.4445, -4.7750, 2.0315

    def forward(self, weight, grad, momentum, second):
        momentum = torch.lerp(momentum, grad.float(), 0.05)
        update = torch.lerp(grad.float(), momentum, 0.95)
        x = update.to(torch.bfloat16)
        x = x / (x.float().norm() + 1e-7).to(x.dtype)
        for _ in range(5):
            gram = x @ x.t()
            x = self.a * x + (self.b * gram + self.c * (gram @ gram)) @ x
        o = x.float()
        norm = o.norm()
        second = torch.lerp(second, o.square().mean(-1), 0.05)
        o = o * torch.rsqrt(second + 1e-8)[:, None]
        o = o * (norm / (o.norm() + 1e-8))
        new = weight.float() * (1 - 2e-4) - 0.02 * (weight.shape[0] / weight.shape[1]) ** 0.5 * o
        return new.to(weight.dtype), momentum, second


def get_inputs():
    return [
        torch.randn(ROWS, COLS, dtype=torch.bfloat16),
        torch.randn(ROWS, COLS, dtype=torch.bfloat16),
        torch.randn(ROWS, COLS),
        torch.rand(ROWS) + 0.1,
    ]


def get_init_inputs():
    return []
