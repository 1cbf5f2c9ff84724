"""Keypoints of heatmaps: a 1x1 convolution, softmax over the plane at a temperature, expected x and y, variance and the
peak's value, fp16."""

import torch
import torch.nn as nn

BATCH = 64
CHANNELS = 256
KEYPOINTS = 17
HEIGHT = 64
WIDTH = 48


class Model(nn.Module):
    def __init__(self, channels, keypoints):
        super().__init__()
        self.head = nn.Conv2d(channels, keypoints, 1, dtype=torch.float16)
        self.beta = 10.0

    def forward(self, features):
        heat = self.head(features)
        b, k, h, w = heat.shape
        p = torch.softmax(self.beta * heat.float().flatten(2), dim=-1).view(b, k, h, w)
        xs = torch.linspace(0, 1, w, device=heat.device)
        ys = torch.linspace(0, 1, h, device=heat.device)
        x = (p.sum(dim=2) * xs).sum(-1)
        y = (p.sum(dim=3) * ys).sum(-1)
        vx = (p.sum(dim=2) * (xs - x[..., None]).pow(2)).sum(-1)
        vy = (p.sum(dim=3) * (ys - y[..., None]).pow(2)).sum(-1)
        return torch.stack([x, y], dim=-1), torch.stack([vx, vy], dim=-1), p.amax(dim=(2, 3))


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH, dtype=torch.float16)]


def get_init_inputs():
    return [CHANNELS, KEYPOINTS]
