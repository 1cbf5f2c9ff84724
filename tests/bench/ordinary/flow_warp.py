"""Frames warped backwards by optical flow: bilinear sampling with zeros outside, and the validity mask."""

import torch
from torch import nn

BATCH, CHANNELS, HEIGHT, WIDTH = 4, 32, 256, 448


class Model(nn.Module):
    def forward(self, x, flow):
        gy = torch.arange(HEIGHT, device=x.device, dtype=torch.float32)[None, :, None] + flow[:, 1]
        gx = torch.arange(WIDTH, device=x.device, dtype=torch.float32)[None, None, :] + flow[:, 0]
        x0, y0 = torch.floor(gx), torch.floor(gy)
        wx, wy = gx - x0, gy - y0
        flat = x.view(BATCH, CHANNELS, HEIGHT * WIDTH)
        out, weight = 0.0, 0.0
        for dy in (0, 1):
            for dx in (0, 1):
                xi, yi = x0 + dx, y0 + dy
                inside = (xi >= 0) & (xi < WIDTH) & (yi >= 0) & (yi < HEIGHT)
                w = (wx if dx else 1 - wx) * (wy if dy else 1 - wy) * inside
                at = yi.clamp(0, HEIGHT - 1).long() * WIDTH + xi.clamp(0, WIDTH - 1).long()
                at = at.view(BATCH, 1, -1).expand(BATCH, CHANNELS, HEIGHT * WIDTH)
                out = out + flat.gather(2, at).view_as(x) * w[:, None]
                weight = weight + w
        return out, (weight > 0.999).float()


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, HEIGHT, WIDTH), 8 * torch.randn(BATCH, 2, HEIGHT, WIDTH)]


def get_init_inputs():
    return []
