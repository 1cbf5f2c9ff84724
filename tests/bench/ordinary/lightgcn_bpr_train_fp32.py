"""LightGCN: three rounds of normalised sums over edges, the layers' mean, a pairwise ranking loss, trained, fp32."""

import torch
import torch.nn as nn
import torch.nn.functional as F

NODES = 20000
EDGES = 200000
WIDTH = 64
BATCH = 4096


class Model(nn.Module):
    def __init__(self, nodes, width):
        super().__init__()
        self.table = nn.Parameter(0.1 * torch.randn(nodes, width))

    def forward(self, source, target, norm, user, liked, other):
        x = self.table
        total = x
        for _ in range(3):
            x = torch.zeros_like(x).index_add(0, target, x[source] * norm[:, None])
            total = total + x
        final = total / 4
        u, p, n = final[user], final[liked], final[other]
        loss = F.softplus((u * n).sum(-1) - (u * p).sum(-1)).mean()
        decay = (self.table[user].square().sum() + self.table[liked].square().sum()) / user.shape[0]
        return loss + 1e-4 * decay


def get_inputs():
    return [
        torch.randint(0, NODES, (EDGES,)),
        torch.randint(0, NODES, (EDGES,)),
        torch.rand(EDGES) * 0.2,
        *(torch.randint(0, NODES, (BATCH,)) for _ in range(3)),
    ]


def get_init_inputs():
    return [NODES, WIDTH]
