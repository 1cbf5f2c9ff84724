"""ApproxNDCG: ranks by sums of pairwise sigmoids, gains, ideal gains by sorting, mask of padded items."""

import torch
from torch import nn

LISTS, ITEMS = 2048, 96


class Model(nn.Module):
    def forward(self, scores, relevance, mask):
        diff = (scores[:, None, :] - scores[:, :, None]) / 0.1
        near = torch.sigmoid(diff) * mask[:, None, :]
        rank = near.sum(-1) + 0.5
        gain = (torch.exp2(relevance) - 1.0) * mask
        dcg = (gain / torch.log2(1.0 + rank)).sum(-1)
        ideal = gain.sort(-1, descending=True).values
        place = torch.arange(1, ITEMS + 1, device=scores.device, dtype=torch.float32)
        idcg = (ideal / torch.log2(1.0 + place)).sum(-1)
        return -(dcg / idcg.clamp(min=1e-6)).mean(), rank


def get_inputs():
    mask = (torch.rand(LISTS, ITEMS) < 0.9).float()
    return [torch.randn(LISTS, ITEMS), torch.randint(0, 5, (LISTS, ITEMS)).float(), mask]


def get_init_inputs():
    return []
