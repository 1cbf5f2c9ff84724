"""NeRF: sines and cosines of powers of two, a linear layer, densities, rendering along rays."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(63, 4)

    def forward(self, pts, delta):
        freq = 2.0 ** torch.arange(10, device=pts.device)
        ang = (pts[..., None] * freq).flatten(-2)
        enc = torch.cat([pts, torch.sin(ang), torch.cos(ang)], -1)
        out = self.lin(enc)
        rgb, sigma = torch.sigmoid(out[..., :3]), F.softplus(out[..., 3])
        alpha = 1 - torch.exp(-sigma * delta)
        trans = torch.cumprod(1 - alpha + 1e-10, -1)
        trans = torch.cat([torch.ones_like(trans[:, :1]), trans[:, :-1]], -1)
        w = alpha * trans
        return (w[..., None] * rgb).sum(1), w.sum(1)


def get_inputs():
    return [torch.rand(1024, 64, 3), 0.02]


def get_init_inputs():
    return []
