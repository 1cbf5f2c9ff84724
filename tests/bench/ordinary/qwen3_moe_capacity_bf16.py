"""Qwen3 MoE with normalised top-k weights and a capacity: positions by cumsum, rows scattered to experts and back."""

import torch
import torch.nn as nn
import torch.nn.functional as F

T, D, HID, E, K, CAP = 1024, 1024, 768, 32, 4, 192


class Model(nn.Module):
    def __init__(self, width, hidden, experts, k, capacity):
        super().__init__()
        self.k, self.experts, self.capacity = k, experts, capacity
        self.router = nn.Linear(width, experts, bias=False)
        self.w1 = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.w3 = nn.Parameter(torch.randn(experts, width, hidden) * width**-0.5)
        self.w2 = nn.Parameter(torch.randn(experts, hidden, width) * hidden**-0.5)
        self.to(torch.bfloat16)

    def forward(self, x):
        t, d = x.shape
        p = torch.softmax(self.router(x).float(), dim=-1)
        w, e = torch.topk(p, self.k, dim=-1)
        w = (w / w.sum(-1, keepdim=True)).to(x.dtype)
        flat = e.reshape(-1)
        hot = F.one_hot(flat, self.experts)
        place = (hot.cumsum(0) * hot).sum(-1) - 1
        fits = place < self.capacity
        slot = torch.where(fits, flat * self.capacity + place, self.experts * self.capacity)
        rows = x.repeat_interleave(self.k, dim=0)
        buffer = x.new_zeros(self.experts * self.capacity + 1, d).index_copy(0, slot, rows)
        grouped = buffer[:-1].view(self.experts, self.capacity, d)
        h = F.silu(torch.bmm(grouped, self.w1)) * torch.bmm(grouped, self.w3)
        out = torch.bmm(h, self.w2).view(-1, d)
        out = torch.cat((out, out.new_zeros(1, d)))
        back = out[slot] * w.reshape(-1, 1)
        return back.view(t, self.k, d).sum(1)


def get_inputs():
    return [torch.randn(T, D, dtype=torch.bfloat16)]


def get_init_inputs():
    return [D, HID, E, K, CAP]
