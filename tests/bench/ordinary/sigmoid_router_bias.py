"""DeepSeek-V3's router: sigmoid scores, groups limited by their best two, top 8 by biased scores, balance loss."""

import torch
from torch import nn

TOKENS, EXPERTS, GROUPS, KEPT, TOP = 32768, 256, 8, 4, 8


class Model(nn.Module):
    def forward(self, logits, bias):
        scores = torch.sigmoid(logits)
        choice = scores + bias
        group = choice.view(TOKENS, GROUPS, EXPERTS // GROUPS).topk(2, dim=-1).values.sum(-1)
        best = group.topk(KEPT, dim=-1).indices
        mask = torch.zeros_like(group).scatter(1, best, 1.0)
        mask = mask[..., None].expand(TOKENS, GROUPS, EXPERTS // GROUPS).reshape(TOKENS, EXPERTS)
        picked = choice.masked_fill(mask == 0, float("-inf")).topk(TOP, dim=-1).indices
        weight = scores.gather(1, picked)
        weight = 2.5 * weight / (weight.sum(-1, keepdim=True) + 1e-20)
        share = torch.zeros_like(scores).scatter(1, picked, 1.0).mean(0) * (EXPERTS / TOP)
        prob = (scores / scores.sum(-1, keepdim=True)).mean(0)
        return weight, picked, 1e-3 * (share * prob).sum()


def get_inputs():
    return [torch.randn(TOKENS, EXPERTS), 0.01 * torch.randn(EXPERTS)]


def get_init_inputs():
    return []
