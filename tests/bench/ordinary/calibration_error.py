"""Expected calibration error: confidence and prediction of each row, bins by confidence, gaps weighted."""

import torch
import torch.nn.functional as F
from torch import nn

ROWS, CLASSES, BINS = 65536, 200, 15


class Model(nn.Module):
    def forward(self, logits, target):
        probs = torch.softmax(logits, -1)
        conf, pred = probs.max(-1)
        right = (pred == target).float()
        at = (conf * BINS).long().clamp(max=BINS - 1)
        zero = torch.zeros(BINS, device=logits.device)
        count = zero.index_add(0, at, torch.ones_like(conf))
        sure = zero.index_add(0, at, conf)
        hits = zero.index_add(0, at, right)
        brier = (probs - F.one_hot(target, CLASSES).float()).pow(2).sum(-1).mean()
        return (sure - hits).abs().sum() / ROWS, count, brier


def get_inputs():
    return [2 * torch.randn(ROWS, CLASSES), torch.randint(0, CLASSES, (ROWS,))]


def get_init_inputs():
    return []
