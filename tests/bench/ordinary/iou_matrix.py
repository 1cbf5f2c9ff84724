"""Boxes against boxes: the matrix of IoU, the best partner of each and whether it overlaps a better one."""

import torch
from torch import nn

BOXES, TRUTHS = 8192, 2048


class Model(nn.Module):
    def forward(self, a, b):
        area_a = (a[:, 2] - a[:, 0]) * (a[:, 3] - a[:, 1])
        area_b = (b[:, 2] - b[:, 0]) * (b[:, 3] - b[:, 1])
        lt = torch.max(a[:, None, :2], b[None, :, :2])
        rb = torch.min(a[:, None, 2:], b[None, :, 2:])
        wh = (rb - lt).clamp(min=0)
        inter = wh[..., 0] * wh[..., 1]
        iou = inter / (area_a[:, None] + area_b[None, :] - inter)
        best, which = iou.max(dim=1)
        return best, torch.where(best > 0.5, which, -1)


def boxes(n):
    corner = torch.rand(n, 2) * 400
    return torch.cat([corner, corner + torch.rand(n, 2) * 200 + 1], dim=1)


def get_inputs():
    return [boxes(BOXES), boxes(TRUTHS)]


def get_init_inputs():
    return []
