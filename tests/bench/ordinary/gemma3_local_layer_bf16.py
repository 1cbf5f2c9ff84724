"""Gemma 3 attention half-layer: sandwich RMS norms with (1 + w), QK norm, rotary halves, a sliding window, GQA."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, S, D, HQ, HK, HD, WIN = 2, 2048, 2560, 8, 4, 256, 1024


def rms(x, w):
    f = x.float()
    f = f * torch.rsqrt(f.pow(2).mean(-1, keepdim=True) + 1e-6)
    return (f * (1.0 + w.float())).type_as(x)


def rotate(x):
    a, b = x.chunk(2, dim=-1)
    return torch.cat((-b, a), dim=-1)


class Model(nn.Module):
    def __init__(self, width, hq, hk, hd, window):
        super().__init__()
        self.hq, self.hk, self.hd, self.window = hq, hk, hd, window
        self.q, self.k = nn.Linear(width, hq * hd, bias=False), nn.Linear(width, hk * hd, bias=False)
        self.v, self.o = nn.Linear(width, hk * hd, bias=False), nn.Linear(hq * hd, width, bias=False)
        self.n1, self.n2 = nn.Parameter(torch.randn(width) * 0.1), nn.Parameter(torch.randn(width) * 0.1)
        self.nq, self.nk = nn.Parameter(torch.randn(hd) * 0.1), nn.Parameter(torch.randn(hd) * 0.1)
        self.to(torch.bfloat16)

    def forward(self, x, cos, sin):
        b, s, _ = x.shape
        h = rms(x, self.n1)
        q = rms(self.q(h).view(b, s, self.hq, self.hd), self.nq).transpose(1, 2)
        k = rms(self.k(h).view(b, s, self.hk, self.hd), self.nk).transpose(1, 2)
        v = self.v(h).view(b, s, self.hk, self.hd).transpose(1, 2)
        q = q * cos + rotate(q) * sin
        k = k * cos + rotate(k) * sin
        k = k.repeat_interleave(self.hq // self.hk, dim=1)
        v = v.repeat_interleave(self.hq // self.hk, dim=1)
        i = torch.arange(s, device=x.device)
        keep = (i[:, None] >= i[None, :]) & (i[:, None] - i[None, :] < self.window)
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=keep, scale=self.hd**-0.5)
        return x + rms(self.o(a.transpose(1, 2).reshape(b, s, -1)), self.n2)


def get_inputs():
    t = torch.outer(torch.arange(S).float(), 10000.0 ** (-torch.arange(0, HD, 2).float() / HD))
    t = torch.cat((t, t), -1)
    return [torch.randn(B, S, D, dtype=torch.bfloat16), t.cos().bfloat16(), t.sin().bfloat16()]


def get_init_inputs():
    return [D, HQ, HK, HD, WIN]
