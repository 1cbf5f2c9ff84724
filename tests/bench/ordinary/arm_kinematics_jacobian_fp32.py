"""A batch of seven-joint arms: Rodrigues' rotations, the chain of poses, the hand's place and its Jacobian, a damped
step, fp32."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 65536
JOINTS = 7


class Model(nn.Module):
    def __init__(self, joints):
        super().__init__()
        self.register_buffer("axes", F.normalize(torch.randn(joints, 3), dim=-1))
        self.register_buffer("links", 0.3 * torch.randn(joints, 3))

    def forward(self, angles, goal):
        b, j = angles.shape
        x, y, z = self.axes.unbind(-1)
        o = torch.zeros_like(x)
        k = torch.stack([o, -z, y, z, o, -x, -y, x, o], -1).view(j, 3, 3)
        s, c = angles.sin()[..., None, None], angles.cos()[..., None, None]
        local = torch.eye(3, device=angles.device) + s * k + (1 - c) * (k @ k)
        turn = torch.eye(3, device=angles.device).expand(b, 3, 3)
        place = torch.zeros(b, 3, device=angles.device)
        axes, places = [], []
        for i in range(j):
            axes.append(turn @ self.axes[i])
            places.append(place)
            turn = turn @ local[:, i]
            place = place + turn @ self.links[i]
        axes, places = torch.stack(axes, 1), torch.stack(places, 1)
        jacobian = torch.linalg.cross(axes, place[:, None] - places)
        error = goal - place
        step = torch.einsum("bji,bi->bj", jacobian, error) / (jacobian.square().sum((1, 2)) + 0.01)[:, None]
        return place, jacobian, angles + step


def get_inputs():
    return [torch.randn(BATCH, JOINTS), torch.randn(BATCH, 3)]


def get_init_inputs():
    return [JOINTS]
