"""Deformable DETR's multi-scale sampling: grid_sample at learned offsets of each level, weighted by a softmax; fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, Q, H, D, P, SIDES = 8, 900, 8, 32, 4, (100, 50, 25)


class Model(nn.Module):
    def __init__(self, heads, width, points, sides):
        super().__init__()
        self.heads, self.points, self.sides = heads, points, sides
        c = heads * width
        self.value = nn.Linear(c, c)
        self.offset = nn.Linear(c, heads * len(sides) * points * 2)
        self.weight = nn.Linear(c, heads * len(sides) * points)
        self.out = nn.Linear(c, c)
        self.half()

    def forward(self, query, memory, centre):
        b, q, c = query.shape
        n = len(self.sides)
        v = self.value(memory).view(b, -1, self.heads, c // self.heads)
        off = self.offset(query).view(b, q, self.heads, n, self.points, 2)
        w = torch.softmax(self.weight(query).view(b, q, self.heads, n * self.points), -1)
        parts = v.split([s * s for s in self.sides], dim=1)
        got = []
        for i, s in enumerate(self.sides):
            grid = 2 * (centre[:, :, None, None, :] + off[:, :, :, i] / s) - 1
            grid = grid.transpose(1, 2).flatten(0, 1)
            image = parts[i].permute(0, 2, 3, 1).reshape(b * self.heads, c // self.heads, s, s)
            got.append(F.grid_sample(image, grid, mode="bilinear", padding_mode="zeros", align_corners=False))
        w = w.transpose(1, 2).reshape(b * self.heads, 1, q, n * self.points)
        y = (torch.cat(got, dim=-1) * w).sum(-1)
        return self.out(y.view(b, c, q).transpose(1, 2))


def get_inputs():
    half = torch.float16
    total = sum(s * s for s in SIDES)
    return [
        torch.randn(B, Q, H * D, dtype=half),
        torch.randn(B, total, H * D, dtype=half),
        torch.rand(B, Q, 2).to(half),
    ]


def get_init_inputs():
    return [H, D, P, SIDES]
