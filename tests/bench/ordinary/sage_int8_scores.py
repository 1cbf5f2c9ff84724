"""Smoothed int8 scores: keys less their mean, blocks of 64 rows to int8, integer products, scaled (TF32 allowed)."""

import torch
from torch import nn

HEADS, SEQ, HEAD, BLOCK = 16, 1024, 128, 64


class Model(nn.Module):
    def quantised(self, x):
        x = x.view(HEADS, SEQ // BLOCK, BLOCK, HEAD)
        scale = x.abs().amax((2, 3), keepdim=True).clamp(min=1e-6) / 127.0
        q = torch.round(x / scale).clamp(-127, 127).to(torch.int8).view(HEADS, SEQ, HEAD)
        return q, scale.expand(HEADS, SEQ // BLOCK, BLOCK, 1).reshape(HEADS, SEQ, 1)

    def forward(self, q, k):
        k = k.float() - k.float().mean(1, keepdim=True)
        qi, qs = self.quantised(q.float() * HEAD**-0.5)
        ki, ks = self.quantised(k)
        s = torch.matmul(qi.float(), ki.float().transpose(1, 2))
        return torch.softmax(s * qs * ks.transpose(1, 2), -1).half()


def get_inputs():
    return [torch.randn(HEADS, SEQ, HEAD, dtype=torch.float16) for _ in range(2)]


def get_init_inputs():
    return []
