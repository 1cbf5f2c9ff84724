"""A relational graph convolution: relations' weights are sums of a few bases, messages divided by a node's edges,
a product for the node itself, classes of some nodes, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

NODES = 20000
EDGES = 200000
RELATIONS = 12
BASES = 4
WIDTH = 64
OUT = 64
CLASSES = 16
KNOWN = 4096


class Model(nn.Module):
    def __init__(self, relations, bases, width, out, classes):
        super().__init__()
        self.bases = nn.Parameter(0.1 * torch.randn(bases, width, out))
        self.parts = nn.Parameter(torch.randn(relations, bases))
        self.own = nn.Linear(width, out)
        self.head = nn.Linear(out, classes)

    def forward(self, x, source, target, relation, norm, known, label):
        each = torch.einsum("nw,bwo->nbo", x, self.bases)
        messages = (each[source] * self.parts[relation][:, :, None]).sum(1) * norm[:, None]
        h = torch.zeros_like(each[:, 0]).index_add(0, target, messages) + self.own(x)
        return F.cross_entropy(self.head(F.relu(h))[known], label)


def get_inputs():
    return [
        torch.randn(NODES, WIDTH),
        torch.randint(0, NODES, (EDGES,)),
        torch.randint(0, NODES, (EDGES,)),
        torch.randint(0, RELATIONS, (EDGES,)),
        torch.rand(EDGES) * 0.3,
        torch.randint(0, NODES, (KNOWN,)),
        torch.randint(0, CLASSES, (KNOWN,)),
    ]


def get_init_inputs():
    return [RELATIONS, BASES, WIDTH, OUT, CLASSES]
