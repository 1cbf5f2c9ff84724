"""Messages of a graph gathered along edges and averaged by destination."""

import torch
from torch import nn

NODES, EDGES, D = 50000, 800000, 64


class Model(nn.Module):
    def forward(self, x, src, dst, weight):
        message = x[src] * weight[:, None]
        index = dst[:, None].expand(-1, D)
        total = torch.zeros(NODES, D, device=x.device).scatter_add_(0, index, message)
        degree = torch.zeros(NODES, device=x.device).scatter_add_(0, dst, torch.ones_like(weight))
        return total / degree.clamp(min=1).unsqueeze(-1)


def get_inputs():
    src, dst = torch.randint(0, NODES, (EDGES,)), torch.randint(0, NODES, (EDGES,))
    return [torch.randn(NODES, D), src, dst, torch.rand(EDGES)]


def get_init_inputs():
    return []
