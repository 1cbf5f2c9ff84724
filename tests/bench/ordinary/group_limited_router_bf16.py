"""DeepSeek-V3's router: sigmoid scores, a correction bias for the choice, 4 of 8 groups, 8 of 256 experts, and a
dense map of weights, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 8192
HIDDEN = 7168
EXPERTS = 256
GROUPS = 8
KEPT_GROUPS = 4
TOP_K = 8


class Model(nn.Module):
    def __init__(self, hidden, experts):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(experts, hidden) * 0.02)
        self.register_buffer("bias", torch.randn(experts) * 0.01)

    def forward(self, x):
        logits = F.linear(x.float(), self.weight)
        scores = logits.sigmoid()
        for_choice = scores + self.bias
        grouped = for_choice.view(-1, GROUPS, scores.shape[-1] // GROUPS)
        group_scores = grouped.topk(2, dim=-1).values.sum(dim=-1)
        groups = group_scores.topk(KEPT_GROUPS, dim=-1, sorted=False).indices
        keep = torch.zeros_like(group_scores).scatter_(1, groups, 1.0)
        masked = grouped.masked_fill(keep.unsqueeze(-1) == 0, float("-inf")).flatten(1)
        experts = masked.topk(TOP_K, dim=-1).indices
        weights = scores.gather(1, experts)
        weights = weights / (weights.sum(dim=-1, keepdim=True) + 1e-20) * 2.5
        combine = torch.zeros_like(scores).scatter(1, experts, weights)
        load = (combine > 0).float().sum(dim=0)
        return combine.to(x.dtype), load


def get_inputs():
    return [torch.randn(TOKENS, HIDDEN, dtype=torch.bfloat16)]


def get_init_inputs():
    return [HIDDEN, EXPERTS]
