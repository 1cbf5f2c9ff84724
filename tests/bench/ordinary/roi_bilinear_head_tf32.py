"""A detector's second stage: 7 x 7 bilinear samples of each region from a feature map, two linear layers, scores and
boxes decoded, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

IMAGES = 4
CHANNELS = 256
SIZE = 64
REGIONS = 256
CLASSES = 91
STRIDE = 16


class Model(nn.Module):
    def __init__(self, channels, classes):
        super().__init__()
        self.fc6 = nn.Linear(channels * 49, 1024)
        self.fc7 = nn.Linear(1024, 1024)
        self.score = nn.Linear(1024, classes)
        self.box = nn.Linear(1024, 4)

    def forward(self, features, boxes):
        n, c, h, w = features.shape
        r = boxes.shape[1]
        step = (torch.arange(7, device=boxes.device) + 0.5) / 7
        x0, y0, x1, y1 = boxes.unbind(-1)
        xs = (x0[..., None] + step * (x1 - x0)[..., None]) / STRIDE / w * 2 - 1
        ys = (y0[..., None] + step * (y1 - y0)[..., None]) / STRIDE / h * 2 - 1
        grid = torch.stack([xs[:, :, None, :].expand(n, r, 7, 7), ys[:, :, :, None].expand(n, r, 7, 7)], dim=-1)
        pooled = F.grid_sample(features, grid.view(n, r * 7, 7, 2), align_corners=False)
        pooled = pooled.view(n, c, r, 7, 7).permute(0, 2, 1, 3, 4).reshape(n * r, c * 49)
        y = F.relu(self.fc7(F.relu(self.fc6(pooled))))
        probs = self.score(y).softmax(dim=-1)
        dx, dy, dw, dh = (self.box(y) / torch.tensor([10.0, 10.0, 5.0, 5.0], device=y.device)).unbind(-1)
        bw, bh = (x1 - x0).flatten(), (y1 - y0).flatten()
        cx, cy = x0.flatten() + 0.5 * bw + dx * bw, y0.flatten() + 0.5 * bh + dy * bh
        pw, ph = bw * dw.clamp(max=4.135).exp(), bh * dh.clamp(max=4.135).exp()
        decoded = torch.stack([cx - pw / 2, cy - ph / 2, cx + pw / 2, cy + ph / 2], dim=-1)
        return probs.view(n, r, -1), decoded.clamp(0, SIZE * STRIDE).view(n, r, 4)


def get_inputs():
    corner = torch.rand(IMAGES, REGIONS, 2) * 700
    size = torch.rand(IMAGES, REGIONS, 2) * 300 + 16
    return [torch.randn(IMAGES, CHANNELS, SIZE, SIZE), torch.cat([corner, corner + size], dim=-1)]


def get_init_inputs():
    return [CHANNELS, CLASSES]
