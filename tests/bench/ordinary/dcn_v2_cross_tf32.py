"""DCN-v2: three low-rank cross layers beside a deep tower, joined to one logit. TF32 allowed."""

import torch
import torch.nn as nn

B, D, R, H = 16384, 1024, 256, 512


class Model(nn.Module):
    def __init__(self, d, r, h):
        super().__init__()
        self.v = nn.ModuleList(nn.Linear(d, r, bias=False) for _ in range(3))
        self.u = nn.ModuleList(nn.Linear(r, d) for _ in range(3))
        self.deep = nn.Sequential(nn.Linear(d, h), nn.ReLU(), nn.Linear(h, h), nn.ReLU())
        self.head = nn.Linear(d + h, 1)

    def forward(self, x0):
        x = x0
        for v, u in zip(self.v, self.u, strict=True):
            x = x0 * u(v(x)) + x
        return torch.sigmoid(self.head(torch.cat((x, self.deep(x0)), dim=-1))).squeeze(-1)


def get_inputs():
    return [torch.randn(B, D)]


def get_init_inputs():
    return [D, R, H]
