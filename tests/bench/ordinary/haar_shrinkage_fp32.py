"""Image denoising by two levels of the Haar transform, soft thresholds in the details, and the inverse."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, C, S = 16, 3, 1024


def split(x):
    a, b = x[..., 0::2, 0::2], x[..., 0::2, 1::2]
    c, d = x[..., 1::2, 0::2], x[..., 1::2, 1::2]
    return (a + b + c + d) / 2, (a - b + c - d) / 2, (a + b - c - d) / 2, (a - b - c + d) / 2


def join(ll, lh, hl, hh):
    a, b = (ll + lh + hl + hh) / 2, (ll - lh + hl - hh) / 2
    c, d = (ll + lh - hl - hh) / 2, (ll - lh - hl + hh) / 2
    top = torch.stack((a, b), -1).flatten(-2)
    low = torch.stack((c, d), -1).flatten(-2)
    return torch.stack((top, low), -2).flatten(-3, -2)


class Model(nn.Module):
    def __init__(self, t1, t2):
        super().__init__()
        self.t1, self.t2 = t1, t2

    def forward(self, x):
        ll, *fine = split(x)
        l2, *coarse = split(ll)
        coarse = [F.softshrink(d, self.t2) for d in coarse]
        fine = [F.softshrink(d, self.t1) for d in fine]
        return join(join(l2, *coarse), *fine)


def get_inputs():
    return [torch.rand(B, C, S, S)]


def get_init_inputs():
    return [0.2, 0.1]
