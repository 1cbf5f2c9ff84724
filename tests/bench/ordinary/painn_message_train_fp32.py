"""PaiNN's message block: scalars and vectors of neighbours mixed by filters of a sine basis with a cosine cutoff,
summed at atoms, vectors' norms in an update, squared energy error, trained."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ATOMS = 400
EDGES = 4000
WIDTH = 64
BASIS = 20


class Model(nn.Module):
    def __init__(self, width, basis):
        super().__init__()
        self.width = width
        self.phi = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 3 * width))
        self.filters = nn.Linear(basis, 3 * width)
        self.u, self.v = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.mix = nn.Linear(2 * width, width)
        self.out = nn.Linear(width, 1)
        self.register_buffer("n", torch.arange(1, basis + 1).float())

    def forward(self, s, vec, place, source, target, energy):
        d = place[target] - place[source]
        r = (d.square().sum(-1) + 1e-6).sqrt()
        unit = d / r[:, None]
        waves = torch.sin(r[:, None] * self.n * (torch.pi / 5.0)) / r[:, None]
        cut = torch.where(r < 5.0, 0.5 * (torch.cos(r * torch.pi / 5.0) + 1), 0.0)
        w = self.filters(waves) * cut[:, None]
        a, b, c = (self.phi(s)[source] * w).chunk(3, -1)
        pushed = vec[source] * b[:, None, :] + c[:, None, :] * unit[:, :, None]
        s = s + torch.zeros_like(s).index_add(0, target, a)
        vec = vec + torch.zeros_like(vec).index_add(0, target, pushed)
        lengths = (self.v(vec).square().sum(1) + 1e-6).sqrt()
        inner = (self.u(vec) * self.v(vec)).sum(1)
        s = s + F.silu(self.mix(torch.cat([s, lengths], -1))) * inner
        return (self.out(s).sum() - energy).square()


def get_inputs():
    return [
        torch.randn(ATOMS, WIDTH),
        torch.randn(ATOMS, 3, WIDTH),
        4 * torch.rand(ATOMS, 3),
        torch.randint(0, ATOMS, (EDGES,)),
        torch.randint(0, ATOMS, (EDGES,)),
        torch.randn(()),
    ]


def get_init_inputs():
    return [WIDTH, BASIS]
