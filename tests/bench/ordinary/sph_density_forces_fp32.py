"""Smoothed particles: densities over 40 neighbours with a cubic spline, pressures, forces with viscosity, one step,
fp32."""

import torch
import torch.nn as nn

PARTICLES = 100000
NEIGHBOURS = 40


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.h, self.rest, self.stiff, self.viscosity = 0.1, 1000.0, 20.0, 0.05

    def spline(self, q):
        near = 1 - 1.5 * q**2 + 0.75 * q**3
        far = 0.25 * (2 - q).clamp(min=0) ** 3
        return torch.where(q < 1, near, far)

    def slope(self, q):
        return torch.where(q < 1, -3 * q + 2.25 * q**2, -0.75 * (2 - q).clamp(min=0) ** 2)

    def forward(self, place, speed, mass, neighbours):
        d = place[:, None] - place[neighbours]
        r = d.square().sum(-1).add(1e-12).sqrt()
        q = r / self.h
        scale = 0.3183 / self.h**3
        density = (mass[neighbours] * scale * self.spline(q)).sum(-1) + mass * scale
        pressure = self.stiff * (density - self.rest)
        shared = pressure / density.square()
        pull = mass[neighbours] * scale / self.h * self.slope(q) / r
        push = -(pull * (shared[:, None] + shared[neighbours]))[..., None] * d
        drag = (self.viscosity * mass[neighbours] / density[neighbours] * scale * self.spline(q))[..., None]
        force = (push + drag * (speed[neighbours] - speed[:, None])).sum(1)
        speed = speed + 1e-3 * force
        return place + 1e-3 * speed, speed, density


def get_inputs():
    return [
        torch.rand(PARTICLES, 3),
        torch.randn(PARTICLES, 3),
        0.5 + torch.rand(PARTICLES),
        torch.randint(0, PARTICLES, (PARTICLES, NEIGHBOURS)),
    ]


def get_init_inputs():
    return []
