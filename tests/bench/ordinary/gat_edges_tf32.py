"""Graph attention with an edge list: four heads, LeakyReLU scores, softmax over each node's incoming edges, the
weighted sum scattered, ELU, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

NODES = 50000
EDGES = 600000
WIDTH = 128
HEADS = 4
OUT = 32


class Model(nn.Module):
    def __init__(self, width, heads, out):
        super().__init__()
        self.heads, self.out = heads, out
        self.lin = nn.Linear(width, heads * out, bias=False)
        self.att_src = nn.Parameter(0.2 * torch.randn(heads, out))
        self.att_dst = nn.Parameter(0.2 * torch.randn(heads, out))
        self.bias = nn.Parameter(torch.zeros(heads * out))

    def forward(self, x, src, dst):
        n = x.shape[0]
        h = self.lin(x).view(n, self.heads, self.out)
        alpha_src = (h * self.att_src).sum(-1)
        alpha_dst = (h * self.att_dst).sum(-1)
        e = F.leaky_relu(alpha_src[src] + alpha_dst[dst], 0.2)
        index = dst[:, None].expand_as(e)
        top = torch.full((n, self.heads), float("-inf"), device=x.device).scatter_reduce(0, index, e, "amax")
        p = (e - top[dst]).exp()
        total = torch.zeros(n, self.heads, device=x.device).index_add(0, dst, p)
        a = p / (total[dst] + 1e-16)
        out = torch.zeros_like(h).index_add(0, dst, a[..., None] * h[src])
        return F.elu(out.reshape(n, -1) + self.bias)


def get_inputs():
    return [
        torch.randn(NODES, WIDTH),
        torch.randint(0, NODES, (EDGES,)),
        torch.randint(0, NODES, (EDGES,)),
    ]


def get_init_inputs():
    return [WIDTH, HEADS, OUT]
