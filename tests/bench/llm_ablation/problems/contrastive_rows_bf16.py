"""Row-wise log-sum-exp of all similarities and the diagonal taken off, as a contrastive loss needs."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, left, right):
        similarities = (left @ right.t()).float() * 0.05
        return torch.logsumexp(similarities, dim=-1) - (left.float() * right.float()).sum(-1) * 0.05


def get_inputs():
    return [torch.randn(8192, 768).bfloat16(), torch.randn(8192, 768).bfloat16()]


def get_init_inputs():
    return []
