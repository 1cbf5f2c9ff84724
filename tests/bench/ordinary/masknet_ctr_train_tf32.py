"""MaskNet: embeddings of 26 fields, masks made of them by two products, a normed product behind each of three masks,
a deep part over the three, logistic loss, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8192
FIELDS = 26
DIM = 16
ROWS = 260000
WIDTH = 256


class Model(nn.Module):
    def __init__(self, fields, dim, rows, width):
        super().__init__()
        n = fields * dim
        self.table = nn.Parameter(0.05 * torch.randn(rows, dim))
        self.norm = nn.LayerNorm(dim)
        self.widen = nn.ModuleList(nn.Linear(n, width) for _ in range(3))
        self.mask = nn.ModuleList(nn.Linear(width, n) for _ in range(3))
        self.block = nn.ModuleList(nn.Linear(n, 64) for _ in range(3))
        self.block_norm = nn.ModuleList(nn.LayerNorm(64) for _ in range(3))
        self.deep = nn.Linear(192, 128)
        self.out = nn.Linear(128, 1)

    def forward(self, ids, clicked):
        e = self.table[ids]
        flat = e.flatten(1)
        normed = self.norm(e).flatten(1)
        parts = []
        for widen, mask, block, norm in zip(self.widen, self.mask, self.block, self.block_norm, strict=True):
            parts.append(F.relu(norm(block(normed * mask(F.relu(widen(flat)))))))
        score = self.out(F.relu(self.deep(torch.cat(parts, -1)))).squeeze(-1)
        return F.binary_cross_entropy_with_logits(score, clicked)


def get_inputs():
    return [torch.randint(0, ROWS, (BATCH, FIELDS)), (torch.rand(BATCH) > 0.8).float()]


def get_init_inputs():
    return [FIELDS, DIM, ROWS, WIDTH]
