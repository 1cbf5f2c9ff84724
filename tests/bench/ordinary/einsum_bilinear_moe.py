"""Soft mixture of experts: dispatch and combine weights over slots, einsums, bf16."""

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, d, e, s):
        super().__init__()
        self.phi = nn.Parameter((torch.randn(d, e, s) * 0.05).bfloat16())
        self.w = nn.Parameter((torch.randn(e, d, d) * 0.05).bfloat16())

    def forward(self, x):
        logits = torch.einsum("bnd,des->bnes", x, self.phi).float()
        dispatch = torch.softmax(logits, dim=1).to(x.dtype)
        combine = torch.softmax(logits.flatten(2), dim=-1).view_as(logits).to(x.dtype)
        slots = torch.einsum("bnd,bnes->besd", x, dispatch)
        out = F.silu(torch.einsum("besd,edf->besf", slots, self.w))
        return torch.einsum("besf,bnes->bnf", out, combine)


def get_inputs():
    return [torch.randn(4, 128, 128).bfloat16()]


def get_init_inputs():
    return [128, 8, 4]
