"""One step of a draft model: features of three layers joined, norms, attention over a cache with a new key, logits of
a reduced vocabulary, bf16."""

import torch
import torch.nn as nn

BATCH = 8
WIDTH = 2048
HEADS = 16
DIM = 128
PAST = 2048
DRAFT = 32000


class Model(nn.Module):
    def __init__(self, width, heads, dim, draft):
        super().__init__()
        b = torch.bfloat16
        self.heads, self.dim = heads, dim
        self.join = nn.Linear(3 * width, width, bias=False, dtype=b)
        self.qkv = nn.Linear(2 * width, 3 * heads * dim, bias=False, dtype=b)
        self.o = nn.Linear(heads * dim, width, bias=False, dtype=b)
        self.head = nn.Linear(width, draft, bias=False, dtype=b)
        self.n1 = nn.Parameter(torch.ones(width, dtype=b))
        self.n2 = nn.Parameter(torch.ones(width, dtype=b))
        self.n3 = nn.Parameter(torch.ones(width, dtype=b))

    def norm(self, x, w):
        v = x.float()
        return (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w

    def forward(self, low, middle, high, token, keys, values):
        b = low.shape[0]
        h = self.join(torch.cat([low, middle, high], dim=-1))
        both = torch.cat([self.norm(token, self.n1), self.norm(h, self.n2)], dim=-1)
        q, k, v = self.qkv(both).view(b, 3, self.heads, 1, self.dim).unbind(1)
        k, v = torch.cat([keys, k], dim=2), torch.cat([values, v], dim=2)
        scores = (q @ k.transpose(-1, -2)).float() * self.dim**-0.5
        y = torch.softmax(scores, dim=-1).to(v.dtype) @ v
        h = h + self.o(y.reshape(b, -1))
        logits = self.head(self.norm(h, self.n3)).float()
        return logits - torch.logsumexp(logits, -1, keepdim=True), h


def get_inputs():
    return [
        *(torch.randn(BATCH, WIDTH, dtype=torch.bfloat16) for _ in range(4)),
        *(torch.randn(BATCH, HEADS, PAST, DIM, dtype=torch.bfloat16) for _ in range(2)),
    ]


def get_init_inputs():
    return [WIDTH, HEADS, DIM, DRAFT]
