"""An E(n)-equivariant layer: messages of node pairs along edges, coordinates and features moved by scattered sums,
TF32 allowed."""

import torch
import torch.nn as nn

NODES = 20000
EDGES = 320000
HIDDEN = 128


class Model(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.edge = nn.Sequential(nn.Linear(2 * hidden + 1, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU())
        self.gate = nn.Sequential(nn.Linear(hidden, 1), nn.Sigmoid())
        self.coord = nn.Sequential(nn.Linear(hidden, hidden), nn.SiLU(), nn.Linear(hidden, 1, bias=False))
        self.node = nn.Sequential(nn.Linear(2 * hidden, hidden), nn.SiLU(), nn.Linear(hidden, hidden))

    def forward(self, h, x, edges):
        row, col = edges
        diff = x[row] - x[col]
        square = diff.pow(2).sum(dim=1, keepdim=True)
        m = self.edge(torch.cat([h[row], h[col], square], dim=1))
        m = m * self.gate(m)
        trans = diff / (square + 1e-8).sqrt().add(1) * self.coord(m)
        count = torch.zeros(x.shape[0], 1, device=x.device).index_add_(0, row, torch.ones_like(square))
        moved = torch.zeros_like(x).index_add_(0, row, trans) / count.clamp(min=1)
        agg = torch.zeros_like(h).index_add_(0, row, m)
        return h + self.node(torch.cat([h, agg], dim=1)), x + moved


def get_inputs():
    return [torch.randn(NODES, HIDDEN), torch.randn(NODES, 3), torch.randint(0, NODES, (2, EDGES))]


def get_init_inputs():
    return [HIDDEN]
