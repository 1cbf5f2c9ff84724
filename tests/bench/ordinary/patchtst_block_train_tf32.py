"""A forecast by PatchTST: instance norm of each series, overlapping patches, a linear embedding with positions, one
encoder layer with batch norm, a flat head, the series' scale put back, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 64
SERIES = 21
STEPS = 336
PATCH = 16
STRIDE = 8
WIDTH = 128
HEADS = 16
HORIZON = 96


class Model(nn.Module):
    def __init__(self, steps, patch, stride, width, heads, horizon):
        super().__init__()
        self.patch, self.stride, self.heads = patch, stride, heads
        count = (steps - patch) // stride + 2
        self.embed = nn.Linear(patch, width)
        self.position = nn.Parameter(0.02 * torch.randn(count, width))
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.n1 = nn.BatchNorm1d(width)
        self.n2 = nn.BatchNorm1d(width)
        self.ff = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
        self.head = nn.Linear(count * width, horizon)

    def forward(self, x):
        b, _, c = x.shape
        mean = x.mean(1, keepdim=True).detach()
        std = torch.sqrt(torch.var(x, dim=1, keepdim=True, unbiased=False) + 1e-5).detach()
        z = ((x - mean) / std).transpose(1, 2)
        z = F.pad(z, (0, self.stride), mode="replicate").unfold(-1, self.patch, self.stride)
        n = z.shape[2]
        h = self.embed(z).reshape(b * c, n, -1) + self.position
        q, k, v = (y.view(b * c, n, self.heads, -1).transpose(1, 2) for y in self.qkv(h).chunk(3, dim=-1))
        a = torch.softmax(q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5, dim=-1) @ v
        h = h + self.out(a.transpose(1, 2).reshape(b * c, n, -1))
        h = self.n1(h.transpose(1, 2)).transpose(1, 2)
        h = h + self.ff(h)
        h = self.n2(h.transpose(1, 2)).transpose(1, 2)
        y = self.head(h.flatten(1)).view(b, c, -1).transpose(1, 2)
        return y * std + mean


def get_inputs():
    return [torch.randn(BATCH, STEPS, SERIES)]


def get_init_inputs():
    return [STEPS, PATCH, STRIDE, WIDTH, HEADS, HORIZON]
