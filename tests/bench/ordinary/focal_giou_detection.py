"""Detection loss: sigmoid focal loss over classes and generalised IoU of matched boxes, by a mask of positives."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def forward(self, logits, labels, boxes, targets, positive):
        onehot = F.one_hot(labels, logits.shape[-1]).to(logits.dtype)
        p = torch.sigmoid(logits)
        ce = F.binary_cross_entropy_with_logits(logits, onehot, reduction="none")
        pt = p * onehot + (1 - p) * (1 - onehot)
        alpha = 0.25 * onehot + 0.75 * (1 - onehot)
        n = positive.sum().clamp(min=1)
        cls = (alpha * (1 - pt) ** 2 * ce).sum() / n
        b = torch.cat([boxes[..., :2] - boxes[..., 2:].exp() / 2, boxes[..., :2] + boxes[..., 2:].exp() / 2], -1)
        t = torch.cat(
            [targets[..., :2] - targets[..., 2:].exp() / 2, targets[..., :2] + targets[..., 2:].exp() / 2], -1
        )
        ib = (torch.minimum(b[..., 2:], t[..., 2:]) - torch.maximum(b[..., :2], t[..., :2])).clamp(min=0)
        inter = ib[..., 0] * ib[..., 1]
        wb, wt = b[..., 2:] - b[..., :2], t[..., 2:] - t[..., :2]
        union = wb[..., 0] * wb[..., 1] + wt[..., 0] * wt[..., 1] - inter
        hull = torch.maximum(b[..., 2:], t[..., 2:]) - torch.minimum(b[..., :2], t[..., :2])
        area = hull[..., 0] * hull[..., 1]
        giou = inter / union - (area - union) / area
        return cls, ((1 - giou) * positive).sum() / n


def get_inputs():
    return [
        torch.randn(4, 2000, 80),
        torch.randint(0, 80, (4, 2000)),
        torch.randn(4, 2000, 4) * 0.5,
        torch.randn(4, 2000, 4) * 0.5,
        torch.rand(4, 2000) < 0.2,
    ]


def get_init_inputs():
    return []
