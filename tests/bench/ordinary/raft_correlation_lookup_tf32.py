"""RAFT's correlation pyramid of all pairs and the look-up of 9 x 9 windows at four levels around the flow, TF32
allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
CHANNELS = 256
HEIGHT = 46
WIDTH = 62
RADIUS = 4


class Model(nn.Module):
    def forward(self, f1, f2, coords):
        b, c, h, w = f1.shape
        corr = torch.matmul(f1.flatten(2).transpose(1, 2), f2.flatten(2)) / c**0.5
        corr = corr.view(b * h * w, 1, h, w)
        d = torch.linspace(-RADIUS, RADIUS, 2 * RADIUS + 1, device=f1.device)
        delta = torch.stack(torch.meshgrid(d, d, indexing="ij"), dim=-1).view(1, 2 * RADIUS + 1, 2 * RADIUS + 1, 2)
        centre = coords.permute(0, 2, 3, 1).reshape(b * h * w, 1, 1, 2)
        out = []
        for level in range(4):
            at = centre / 2**level + delta
            x, y = at.split(1, dim=-1)
            height, width = corr.shape[-2:]
            grid = torch.cat([2 * x / (width - 1) - 1, 2 * y / (height - 1) - 1], dim=-1)
            out.append(F.grid_sample(corr, grid, align_corners=True).view(b, h, w, -1))
            corr = F.avg_pool2d(corr, 2, stride=2)
        return torch.cat(out, dim=-1).permute(0, 3, 1, 2).contiguous()


def get_inputs():
    ys, xs = torch.meshgrid(torch.arange(HEIGHT).float(), torch.arange(WIDTH).float(), indexing="ij")
    coords = torch.stack([xs, ys]).expand(BATCH, 2, HEIGHT, WIDTH) + 3 * torch.randn(BATCH, 2, HEIGHT, WIDTH)
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH), torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH), coords]


def get_init_inputs():
    return []
