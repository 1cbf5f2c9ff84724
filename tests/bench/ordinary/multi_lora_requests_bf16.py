"""A linear layer of many LoRA adapters: each request's adapter gathered by its index, added to the base."""

import torch
import torch.nn as nn

B, S, D, OUT, A, R = 64, 16, 2048, 2048, 32, 16


class Model(nn.Module):
    def __init__(self, d, o, adapters, r):
        super().__init__()
        self.base = nn.Linear(d, o)
        self.a = nn.Parameter(torch.randn(adapters, r, d) * d**-0.5)
        self.b = nn.Parameter(torch.randn(adapters, o, r) * 0.1)
        self.scale = nn.Parameter(torch.rand(adapters))
        self.to(torch.bfloat16)

    def forward(self, x, which):
        low = torch.bmm(x, self.a[which].transpose(1, 2)) * self.scale[which][:, None, None]
        return self.base(x) + torch.bmm(low, self.b[which].transpose(1, 2))


def get_inputs():
    return [torch.randn(B, S, D, dtype=torch.bfloat16), torch.randint(0, A, (B,))]


def get_init_inputs():
    return [D, OUT, A, R]
