"""A step of the material point method in the plane: quadratic weights, particles' mass and affine momentum scattered
to nine nodes each, gravity and walls on the grid, velocities gathered back, fp32."""

import torch
import torch.nn as nn

PARTICLES = 200000
GRID = 256


class Model(nn.Module):
    def __init__(self, grid):
        super().__init__()
        self.grid = grid
        self.dt, self.mass, self.stiffness = 1e-4, 1.0, 400.0

    def forward(self, x, v, affine, jacobian):
        n = self.grid
        place = x * n
        base = (place - 0.5).floor().clamp(0, n - 3)
        f = place - base
        w = torch.stack((0.5 * (1.5 - f).square(), 0.75 - (f - 1).square(), 0.5 * (f - 0.5).square()), 0)
        stress = -self.dt * self.stiffness * (jacobian - 1)
        eye = torch.eye(2, device=x.device)
        moved = stress[:, None, None] * eye + self.mass * affine
        first = base.long()
        mass = torch.zeros(n * n, device=x.device)
        momentum = torch.zeros(n * n, 2, device=x.device)
        cells, weights, offsets = [], [], []
        for i in range(3):
            for j in range(3):
                offset = (torch.tensor([i, j], device=x.device) - f) / n
                weight = w[i, :, 0] * w[j, :, 1]
                cell = (first[:, 0] + i) * n + first[:, 1] + j
                mass = mass.index_add(0, cell, weight * self.mass)
                carried = self.mass * v + (moved * offset[:, None, :]).sum(-1)
                momentum = momentum.index_add(0, cell, weight[:, None] * carried)
                cells.append(cell)
                weights.append(weight)
                offsets.append(offset)
        speed = momentum / mass.clamp(min=1e-8)[:, None] + torch.tensor([0.0, -9.8 * self.dt], device=x.device)
        row = torch.arange(n * n, device=x.device) // n
        column = torch.arange(n * n, device=x.device) % n
        wall = (row < 3) | (row > n - 4) | (column < 3) | (column > n - 4)
        speed = torch.where(wall[:, None], torch.zeros_like(speed), speed)
        new_v, new_affine = torch.zeros_like(v), torch.zeros_like(affine)
        for cell, weight, offset in zip(cells, weights, offsets, strict=True):
            g = weight[:, None] * speed[cell]
            new_v = new_v + g
            new_affine = new_affine + 4 * n * n * g[:, :, None] * offset[:, None, :]
        trace = new_affine[:, 0, 0] + new_affine[:, 1, 1]
        return (x + self.dt * new_v).clamp(0, 1), new_v, new_affine, jacobian * (1 + self.dt * trace)


def get_inputs():
    return [
        0.1 + 0.8 * torch.rand(PARTICLES, 2),
        torch.randn(PARTICLES, 2),
        torch.randn(PARTICLES, 2, 2),
        0.9 + 0.2 * torch.rand(PARTICLES),
    ]


def get_init_inputs():
    return [GRID]
