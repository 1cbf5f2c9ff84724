"""A GINE layer: relu(source + edge projection) added at targets, then an MLP of (1 + eps) x + sum. TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

N, E, D, ED = 65536, 524288, 128, 16


class Model(nn.Module):
    def __init__(self, d, ed):
        super().__init__()
        self.edge = nn.Linear(ed, d)
        self.fc1, self.fc2 = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.norm = nn.LayerNorm(2 * d)
        self.eps = nn.Parameter(torch.tensor(0.1))

    def forward(self, x, source, target, attr):
        message = F.relu(x[source] + self.edge(attr))
        total = torch.zeros_like(x).index_add(0, target, message)
        return self.fc2(F.relu(self.norm(self.fc1((1 + self.eps) * x + total))))


def get_inputs():
    return [torch.randn(N, D), torch.randint(0, N, (E,)), torch.randint(0, N, (E,)), torch.randn(E, ED)]


def get_init_inputs():
    return [D, ED]
