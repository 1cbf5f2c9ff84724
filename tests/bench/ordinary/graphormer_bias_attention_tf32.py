"""Graphormer's attention over batches of small graphs: degrees' embeddings added, a bias for each head by the length
of the shortest path and by the mean of the edges on it, padding masked, TF32 allowed."""

import torch
import torch.nn as nn

GRAPHS = 64
NODES = 128
WIDTH = 512
HEADS = 16
DISTANCES = 32
EDGE_KINDS = 64
HOPS = 4


class Model(nn.Module):
    def __init__(self, width, heads, distances, kinds):
        super().__init__()
        self.heads = heads
        self.degree = nn.Embedding(64, width)
        self.distance = nn.Embedding(distances, heads)
        self.edge = nn.Embedding(kinds, heads)
        self.norm = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x, degree, distance, path, real):
        n, t, c = x.shape
        h = x + self.degree(degree)
        q, k, v = (p.view(n, t, self.heads, -1).transpose(1, 2) for p in self.qkv(self.norm(h)).chunk(3, -1))
        hops = distance.clamp(1, path.shape[-1]).unsqueeze(-1).float()
        bias = self.distance(distance) + self.edge(path).sum(3) / hops
        scores = (q * q.shape[-1] ** -0.5) @ k.transpose(-1, -2) + bias.permute(0, 3, 1, 2)
        scores = scores.masked_fill(~real[:, None, None, :], float("-inf"))
        mixed = (scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, c)
        return h + self.out(mixed)


def get_inputs():
    real = torch.arange(NODES)[None, :] < torch.randint(NODES // 2, NODES + 1, (GRAPHS, 1))
    return [
        torch.randn(GRAPHS, NODES, WIDTH),
        torch.randint(0, 64, (GRAPHS, NODES)),
        torch.randint(0, DISTANCES, (GRAPHS, NODES, NODES)),
        torch.randint(0, EDGE_KINDS, (GRAPHS, NODES, NODES, HOPS)),
        real,
    ]


def get_init_inputs():
    return [WIDTH, HEADS, DISTANCES, EDGE_KINDS]
