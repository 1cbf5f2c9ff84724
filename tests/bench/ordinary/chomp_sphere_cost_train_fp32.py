"""CHOMP's objective for a flying arm: spheres along trajectories against boxes by signed distances, a smooth hinge
weighed by speed, and squared accelerations, trained."""

import torch
import torch.nn as nn

BATCH = 128
STEPS = 64
SPHERES = 6
BOXES = 12


class Model(nn.Module):
    def __init__(self, spheres):
        super().__init__()
        self.offsets = nn.Parameter(0.2 * torch.randn(spheres, 3))
        self.register_buffer("radii", torch.rand(spheres) * 0.1 + 0.05)

    def forward(self, path, centre, half):
        places = path[:, :, None, :] + self.offsets
        q = (places[:, :, :, None, :] - centre).abs() - half
        outside = (q.clamp(min=0).square().sum(-1) + 1e-9).sqrt()
        inside = q.amax(-1).clamp(max=0)
        distance = (outside + inside).amin(-1) - self.radii
        margin = 0.3
        near = torch.where(distance < 0, margin / 2 - distance, (distance - margin).square() / (2 * margin))
        cost = torch.where(distance > margin, 0.0, near)
        speed = ((places[:, 1:] - places[:, :-1]).square().sum(-1) + 1e-9).sqrt()
        obstacle = (cost[:, 1:] * speed).sum((1, 2))
        bend = path[:, 2:] - 2 * path[:, 1:-1] + path[:, :-2]
        return (obstacle + 10.0 * bend.square().sum((1, 2))).mean()


def get_inputs():
    return [torch.randn(BATCH, STEPS, 3), torch.randn(BOXES, 3), 0.3 * torch.rand(BOXES, 3) + 0.1]


def get_init_inputs():
    return [SPHERES]
