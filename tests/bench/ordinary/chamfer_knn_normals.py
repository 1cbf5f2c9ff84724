"""Chamfer distance of two clouds and of the normals at the nearest points."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, a, b, na, nb):
        d = ((a[:, :, None] - b[:, None]) ** 2).sum(-1)
        da, ia = d.min(2)
        db, ib = d.min(1)
        ca = (na * torch.gather(nb, 1, ia[..., None].expand(-1, -1, 3))).sum(-1).abs()
        cb = (nb * torch.gather(na, 1, ib[..., None].expand(-1, -1, 3))).sum(-1).abs()
        return da.mean() + db.mean() + 0.1 * (2 - ca.mean() - cb.mean())


def get_inputs():
    return [
        torch.rand(4, 512, 3),
        torch.rand(4, 640, 3),
        F.normalize(torch.randn(4, 512, 3), dim=-1),
        F.normalize(torch.randn(4, 640, 3), dim=-1),
    ]


def get_init_inputs():
    return []
