"""A boosted forest of 200 trees of depth 6 on tabular rows: indices walk down by gathers, leaves are summed, a
sigmoid at the end."""

import torch
import torch.nn as nn

ROWS = 20000
FEATURES = 64
TREES = 200
DEPTH = 6


class Model(nn.Module):
    def __init__(self, features, trees, depth):
        super().__init__()
        self.depth = depth
        inner = 2**depth - 1
        self.register_buffer("feature", torch.randint(0, features, (trees, inner)))
        self.register_buffer("threshold", torch.randn(trees, inner))
        self.register_buffer("leaf", torch.randn(trees, 2**depth) * 0.1)
        self.register_buffer("tree", torch.arange(trees))

    def forward(self, x):
        node = torch.zeros(x.shape[0], self.tree.shape[0], dtype=torch.long, device=x.device)
        for _ in range(self.depth):
            feature = self.feature[self.tree, node]
            threshold = self.threshold[self.tree, node]
            value = torch.gather(x, 1, feature)
            node = 2 * node + 1 + (value > threshold).long()
        leaf = self.leaf[self.tree, node - (2**self.depth - 1)]
        margin = leaf.sum(dim=1)
        return torch.sigmoid(margin), margin


def get_inputs():
    return [torch.randn(ROWS, FEATURES)]


def get_init_inputs():
    return [FEATURES, TREES, DEPTH]
