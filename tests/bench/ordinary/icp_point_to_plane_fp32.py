"""An iteration of point-to-plane ICP: nearest of the other cloud's points by brute force, rejection by distance and
normals, Huber weights, the six normal equations and their right side."""

import torch
import torch.nn as nn

POINTS = 2000
OTHERS = 2000


class Model(nn.Module):
    def forward(self, points, normals, others, other_normals, rotation, translation):
        p = points @ rotation.t() + translation
        n = normals @ rotation.t()
        squared = p.square().sum(1)[:, None] - 2 * p @ others.t() + others.square().sum(1)
        distance, nearest = squared.min(1)
        q, m = others[nearest], other_normals[nearest]
        residual = ((p - q) * m).sum(1)
        good = (distance < 0.25) & ((n * m).sum(1) > 0.3)
        weight = torch.where(residual.abs() < 0.05, 1.0, 0.05 / residual.abs().clamp(min=1e-6)) * good
        rows = torch.cat([torch.linalg.cross(p, m), m], 1)
        left = (rows * weight[:, None]).t() @ rows
        right = -(rows * (weight * residual)[:, None]).sum(0)
        return left, right, good.sum(), (weight * residual.square()).sum()


def get_inputs():
    def unit(n):
        return torch.nn.functional.normalize(torch.randn(n, 3), dim=1)

    return [
        torch.randn(POINTS, 3),
        unit(POINTS),
        torch.randn(OTHERS, 3),
        unit(OTHERS),
        torch.linalg.qr(torch.randn(3, 3))[0],
        0.1 * torch.randn(3),
    ]


def get_init_inputs():
    return []
