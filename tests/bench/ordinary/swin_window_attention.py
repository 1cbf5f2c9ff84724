"""Shifted window attention: roll, windows, relative bias by a table of indices, mask, and back."""

import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, d, heads, w):
        super().__init__()
        self.qkv, self.proj = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.table = nn.Parameter(torch.randn((2 * w - 1) ** 2, heads) * 0.02)
        c = torch.stack(torch.meshgrid(torch.arange(w), torch.arange(w), indexing="ij")).flatten(1)
        r = (c[:, :, None] - c[:, None, :]).permute(1, 2, 0) + w - 1
        self.register_buffer("place", r[..., 0] * (2 * w - 1) + r[..., 1])
        self.heads, self.w = heads, w

    def forward(self, x):
        b, h, ww, d = x.shape
        w = self.w
        x = torch.roll(x, (-w // 2, -w // 2), (1, 2))
        x = x.view(b, h // w, w, ww // w, w, d).permute(0, 1, 3, 2, 4, 5).reshape(-1, w * w, d)
        q, k, v = self.qkv(x).view(-1, w * w, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        s = q @ k.transpose(-2, -1) * (d // self.heads) ** -0.5 + self.table[self.place].permute(2, 0, 1)
        y = (s.softmax(-1) @ v).transpose(1, 2).reshape(-1, w * w, d)
        y = self.proj(y).view(b, h // w, ww // w, w, w, d).permute(0, 1, 3, 2, 4, 5).reshape(b, h, ww, d)
        return torch.roll(y, (w // 2, w // 2), (1, 2))


def get_inputs():
    return [torch.randn(2, 32, 32, 96)]


def get_init_inputs():
    return [96, 3, 8]
