"""LeJEPA: a projector over views' embeddings, the distance of each view from the views' mean, and SIGReg, which
compares the characteristic functions of random projections with a Gaussian's, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

VIEWS = 8
BATCH = 256
WIDTH = 384
HIDDEN = 1024
OUT = 128
SLICES = 256
POINTS = 17


class Model(nn.Module):
    def __init__(self, width, hidden, out, slices, points):
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.second = nn.Linear(hidden, out)
        directions = torch.randn(out, slices)
        self.register_buffer("directions", directions / directions.norm(dim=0))
        t = torch.linspace(0, 3, points)
        step = torch.full((points,), 2 * 3 / (points - 1))
        step[0] = step[-1] = 3 / (points - 1)
        self.register_buffer("t", t)
        self.register_buffer("gauss", torch.exp(-0.5 * t.square()))
        self.register_buffer("weight", step * torch.exp(-0.5 * t.square()))

    def forward(self, views):
        z = self.second(F.gelu(self.norm(self.first(views))))
        invariance = (z - z.mean(0, keepdim=True)).square().mean()
        angle = (z @ self.directions).unsqueeze(-1) * self.t
        error = (angle.cos().mean(1) - self.gauss).square() + angle.sin().mean(1).square()
        statistic = (error @ self.weight) * views.shape[1]
        return 0.95 * invariance + 0.05 * statistic.mean()


def get_inputs():
    return [torch.randn(VIEWS, BATCH, WIDTH)]


def get_init_inputs():
    return [WIDTH, HIDDEN, OUT, SLICES, POINTS]
