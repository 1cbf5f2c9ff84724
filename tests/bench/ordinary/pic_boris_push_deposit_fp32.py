"""A step of a particle-in-cell plasma in two dimensions: fields gathered by bilinear weights, Boris's push in a
magnetic field, periodic places, charge deposited on the four corners of each cell."""

import torch
import torch.nn as nn

PARTICLES = 60000
SIDE = 64


class Model(nn.Module):
    def __init__(self, side):
        super().__init__()
        self.side = side

    def forward(self, place, speed, field, magnetic):
        low = place.floor()
        frac = place - low
        i = low.long() % self.side
        j = (i + 1) % self.side
        corners = [
            (i[:, 0], i[:, 1], (1 - frac[:, 0]) * (1 - frac[:, 1])),
            (j[:, 0], i[:, 1], frac[:, 0] * (1 - frac[:, 1])),
            (i[:, 0], j[:, 1], (1 - frac[:, 0]) * frac[:, 1]),
            (j[:, 0], j[:, 1], frac[:, 0] * frac[:, 1]),
        ]
        force = sum(field[a, b] * w[:, None] for a, b, w in corners)
        half = 0.05
        minus = speed + half * torch.cat([force, torch.zeros_like(force[:, :1])], 1)
        t = half * magnetic.expand_as(minus)
        s = 2 * t / (1 + t.square().sum(1, keepdim=True))
        prime = minus + torch.linalg.cross(minus, t)
        plus = minus + torch.linalg.cross(prime, s)
        speed = plus + half * torch.cat([force, torch.zeros_like(force[:, :1])], 1)
        moved = torch.remainder(place + 0.1 * speed[:, :2], self.side)
        density = torch.zeros(self.side * self.side, device=place.device)
        for a, b, w in corners:
            density = density.index_add(0, a * self.side + b, w)
        return moved, speed, density.reshape(self.side, self.side)


def get_inputs():
    return [
        SIDE * torch.rand(PARTICLES, 2),
        torch.randn(PARTICLES, 3),
        torch.randn(SIDE, SIDE, 2),
        torch.randn(3),
    ]


def get_init_inputs():
    return [SIDE]
