"""Wukong: two layers, each a factorisation machine whose pairs with few learned mixtures go through a perceptron,
beside a linear compression of the embeddings, residual and norm, logistic loss, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4096
FIELDS = 32
DIM = 64
ROWS = 200000
PAIRED = 16
HIDDEN = 256


class Layer(nn.Module):
    def __init__(self, fields, dim, paired, hidden):
        super().__init__()
        self.dim, half = dim, fields // 2
        self.mix = nn.Parameter(torch.randn(fields, paired) / fields**0.5)
        self.linear = nn.Parameter(torch.randn(half, fields) / fields**0.5)
        self.inner = nn.LayerNorm(fields * paired)
        self.up = nn.Linear(fields * paired, hidden)
        self.down = nn.Linear(hidden, half * dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x):
        pairs = x @ (x.transpose(1, 2) @ self.mix)
        y = self.down(F.relu(self.up(self.inner(pairs.flatten(1)))))
        y = torch.cat((y.view(x.shape[0], -1, self.dim), self.linear @ x), 1)
        return self.norm(y + x)


class Model(nn.Module):
    def __init__(self, fields, dim, rows, paired, hidden):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(rows, dim))
        self.layers = nn.ModuleList(Layer(fields, dim, paired, hidden) for _ in range(2))
        self.out = nn.Linear(fields * dim, 1)

    def forward(self, ids, clicked):
        x = self.table[ids]
        for layer in self.layers:
            x = layer(x)
        return F.binary_cross_entropy_with_logits(self.out(x.flatten(1)).squeeze(-1), clicked)


def get_inputs():
    return [torch.randint(0, ROWS, (BATCH, FIELDS)), (torch.rand(BATCH) > 0.8).float()]


def get_init_inputs():
    return [FIELDS, DIM, ROWS, PAIRED, HIDDEN]
