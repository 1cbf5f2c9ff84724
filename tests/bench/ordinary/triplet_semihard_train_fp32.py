"""A triplet loss with semi-hard negatives mined in the batch by masked minima, trained."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 512
WIDTH = 256
CLASSES = 64
MARGIN = 0.3


class Model(nn.Module):
    def forward(self, x, labels):
        e = F.normalize(x, dim=1)
        dist = (2 - 2 * e @ e.t()).clamp(min=1e-6).sqrt()
        same = labels[:, None] == labels[None, :]
        eye = torch.eye(x.shape[0], dtype=torch.bool, device=x.device)
        positive = same & ~eye
        hardest = dist.masked_fill(~positive, 0.0).amax(dim=1)
        semi = (~same) & (dist > hardest[:, None])
        negative_semi = dist.masked_fill(~semi, 1e3).amin(dim=1)
        negative_far = dist.masked_fill(same, -1.0).amax(dim=1)
        negative = torch.where(semi.any(dim=1), negative_semi, negative_far)
        loss = F.softplus((hardest - negative + MARGIN) / 0.1) * 0.1
        valid = positive.any(dim=1)
        return (loss * valid).sum() / valid.sum().clamp(min=1)


def get_inputs():
    return [torch.randn(BATCH, WIDTH), torch.randint(0, CLASSES, (BATCH,))]


def get_init_inputs():
    return []
