"""SSD: boxes decoded from priors and variances, class scores, the best overlap with the ground truth of each box,
targets encoded, fp32."""

import torch
import torch.nn as nn

BATCH = 32
PRIORS = 24564
CLASSES = 81
OBJECTS = 40


class Model(nn.Module):
    def __init__(self, threshold):
        super().__init__()
        self.threshold = threshold

    def forward(self, loc, conf, priors, truth, labels):
        centre = priors[:, :2] + loc[..., :2] * 0.1 * priors[:, 2:]
        size = priors[:, 2:] * torch.exp(loc[..., 2:] * 0.2)
        boxes = torch.cat([centre - size / 2, centre + size / 2], dim=-1)
        scores = torch.softmax(conf, dim=-1)[..., 1:]
        best_score, best_class = scores.max(dim=-1)

        corner = torch.cat([priors[:, :2] - priors[:, 2:] / 2, priors[:, :2] + priors[:, 2:] / 2], dim=-1)
        top_left = torch.maximum(corner[None, :, None, :2], truth[:, None, :, :2])
        bottom_right = torch.minimum(corner[None, :, None, 2:], truth[:, None, :, 2:])
        inter = (bottom_right - top_left).clamp(min=0).prod(dim=-1)
        area_p = (priors[:, 2] * priors[:, 3])[None, :, None]
        area_t = ((truth[..., 2] - truth[..., 0]) * (truth[..., 3] - truth[..., 1]))[:, None, :]
        overlap, match = (inter / (area_p + area_t - inter)).max(dim=-1)
        chosen = torch.gather(truth, 1, match[..., None].expand(-1, -1, 4))
        label = torch.where(overlap < self.threshold, 0, torch.gather(labels, 1, match) + 1)
        g_centre = ((chosen[..., :2] + chosen[..., 2:]) / 2 - priors[:, :2]) / (0.1 * priors[:, 2:])
        g_size = torch.log((chosen[..., 2:] - chosen[..., :2]) / priors[:, 2:]) / 0.2
        return boxes, best_score, best_class, label, torch.cat([g_centre, g_size], dim=-1)


def get_inputs():
    priors = torch.cat([torch.rand(PRIORS, 2), 0.05 + 0.4 * torch.rand(PRIORS, 2)], dim=-1)
    low = 0.6 * torch.rand(BATCH, OBJECTS, 2)
    truth = torch.cat([low, low + 0.05 + 0.35 * torch.rand(BATCH, OBJECTS, 2)], dim=-1)
    return [
        torch.randn(BATCH, PRIORS, 4),
        torch.randn(BATCH, PRIORS, CLASSES),
        priors,
        truth,
        torch.randint(0, CLASSES - 1, (BATCH, OBJECTS)),
    ]


def get_init_inputs():
    return [0.5]
