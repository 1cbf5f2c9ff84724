"""A body model: shape and pose blends of vertices, joints from vertices, the chain of poses, linear blend skinning,
TF32 allowed."""

import torch
import torch.nn as nn

BATCH = 64
VERTICES = 6890
JOINTS = 24
SHAPES = 10


PARENTS = [-1, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 9, 12, 13, 14, 16, 17, 18, 19, 20, 21]


class Model(nn.Module):
    def __init__(self, vertices, joints, shapes):
        super().__init__()
        self.register_buffer("template", torch.randn(vertices, 3))
        self.register_buffer("shape_dirs", 0.03 * torch.randn(shapes, vertices * 3))
        self.register_buffer("pose_dirs", 0.01 * torch.randn((joints - 1) * 9, vertices * 3))
        self.register_buffer("regressor", torch.softmax(4 * torch.randn(joints, vertices), -1))
        self.register_buffer("weights", torch.softmax(3 * torch.randn(vertices, joints), -1))

    def forward(self, betas, rotations):
        b, j = rotations.shape[:2]
        shaped = self.template + (betas @ self.shape_dirs).view(b, -1, 3)
        rest = torch.einsum("jv,bvc->bjc", self.regressor, shaped)
        feature = (rotations[:, 1:] - torch.eye(3, device=betas.device)).reshape(b, -1)
        posed = shaped + (feature @ self.pose_dirs).view(b, -1, 3)
        turns, places = [rotations[:, 0]], [rest[:, 0]]
        for i in range(1, j):
            p = PARENTS[i]
            offset = (rest[:, i] - rest[:, p])[..., None]
            places.append(places[p] + (turns[p] @ offset).squeeze(-1))
            turns.append(turns[p] @ rotations[:, i])
        turn, place = torch.stack(turns, 1), torch.stack(places, 1)
        move = place - (turn @ rest[..., None]).squeeze(-1)
        mixed = torch.einsum("vj,bjm->bvm", self.weights, torch.cat([turn.reshape(b, j, 9), move], -1))
        out = (mixed[..., :9].view(b, -1, 3, 3) @ posed[..., None]).squeeze(-1) + mixed[..., 9:]
        return out, place


def get_inputs():
    return [torch.randn(BATCH, SHAPES), torch.linalg.qr(torch.randn(BATCH, JOINTS, 3, 3))[0]]


def get_init_inputs():
    return [VERTICES, JOINTS, SHAPES]
