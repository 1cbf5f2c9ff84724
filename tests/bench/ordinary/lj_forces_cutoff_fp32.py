"""Lennard-Jones forces, energy and virial of a periodic box by all pairs, with a cut-off and a shifted potential,
fp32."""

import torch
import torch.nn as nn

SYSTEMS = 8
ATOMS = 2048
BOX = 14.0
CUTOFF = 2.5


class Model(nn.Module):
    def __init__(self, box, cutoff):
        super().__init__()
        self.box, self.cutoff = box, cutoff

    def forward(self, x):
        d = x[:, :, None, :] - x[:, None, :, :]
        d = d - self.box * torch.round(d / self.box)
        r2 = (d * d).sum(-1)
        n = x.shape[1]
        other = ~torch.eye(n, dtype=torch.bool, device=x.device)
        inside = (r2 < self.cutoff**2) & other
        r2 = torch.where(inside, r2.clamp(min=0.64), torch.ones_like(r2))
        inv6 = r2.pow(-3)
        shift = 4 * (self.cutoff**-12 - self.cutoff**-6)
        energy = torch.where(inside, 4 * (inv6 * inv6 - inv6) - shift, 0.0)
        pull = torch.where(inside, (48 * inv6 * inv6 - 24 * inv6) / r2, 0.0)
        force = (pull[..., None] * d).sum(dim=2)
        virial = 0.5 * (pull * r2).sum(dim=(1, 2))
        return force, 0.5 * energy.sum(dim=(1, 2)), virial


def get_inputs():
    return [BOX * torch.rand(SYSTEMS, ATOMS, 3)]


def get_init_inputs():
    return [BOX, CUTOFF]
