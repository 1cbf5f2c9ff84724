"""A router: softmax, top 8 of 128 experts, renormalised weights, and the load-balancing loss."""

import torch
import torch.nn.functional as F
from torch import nn

TOKENS, D, EXPERTS, TOP = 16384, 2048, 128, 8


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gate = nn.Linear(D, EXPERTS, bias=False, dtype=torch.bfloat16)

    def forward(self, x):
        probs = torch.softmax(self.gate(x).float(), dim=-1)
        weight, index = torch.topk(probs, TOP, dim=-1)
        weight = weight / weight.sum(-1, keepdim=True)
        hot = F.one_hot(index, EXPERTS).sum(1).float()
        balance = EXPERTS * (hot.mean(0) * probs.mean(0)).sum() / TOP
        return weight.to(torch.bfloat16), index, balance


def get_inputs():
    return [torch.randn(TOKENS, D, dtype=torch.bfloat16)]


def get_init_inputs():
    return []
