"""DLRM: 26 embedding bags, a bottom perceptron, all pairs' dot products below the diagonal, a top perceptron, fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 16384
DENSE = 13
TABLES = 26
ROWS = 20000
DIM = 64
BAG = 4


class Model(nn.Module):
    def __init__(self, dense, tables, rows, dim):
        super().__init__()
        self.tables = nn.Parameter(torch.randn(tables, rows, dim) * 0.1)
        self.bottom = nn.Sequential(nn.Linear(dense, 256), nn.ReLU(), nn.Linear(256, dim), nn.ReLU())
        pairs = (tables + 1) * tables // 2
        self.top = nn.Sequential(
            nn.Linear(pairs + dim, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
        )
        self.half()

    def forward(self, dense, indices):
        x = self.bottom(dense)
        bags = [F.embedding_bag(indices[i], self.tables[i], mode="sum") for i in range(self.tables.shape[0])]
        features = torch.stack([x, *bags], dim=1)
        dots = torch.bmm(features, features.transpose(1, 2))
        i, j = torch.tril_indices(features.shape[1], features.shape[1], offset=-1, device=x.device)
        return torch.sigmoid(self.top(torch.cat([x, dots[:, i, j]], dim=1))).squeeze(1)


def get_inputs():
    return [torch.rand(BATCH, DENSE, dtype=torch.float16), torch.randint(0, ROWS, (TABLES, BATCH, BAG))]


def get_init_inputs():
    return [DENSE, TABLES, ROWS, DIM]
