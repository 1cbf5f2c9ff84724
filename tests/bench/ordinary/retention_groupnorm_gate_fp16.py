"""RetNet's parallel retention: a decay of each head in place of softmax, group norm of heads, a swish gate; fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, L, D, H = 4, 1024, 1024, 8


class Model(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))
        self.g, self.o = nn.Linear(d, d, bias=False), nn.Linear(d, d, bias=False)
        self.norm = nn.GroupNorm(h, d, affine=False)
        self.half()
        self.register_buffer("gamma", torch.log(1 - 2.0 ** (-5 - torch.arange(h).float())))

    def forward(self, x):
        b, length, d = x.shape
        q, k, v = (f(x).view(b, length, self.h, -1).transpose(1, 2) for f in (self.q, self.k, self.v))
        i = torch.arange(length, device=x.device).float()
        far = i[:, None] - i[None, :]
        decay = torch.exp(far * self.gamma[:, None, None]) * (far >= 0)
        s = (q @ k.transpose(-1, -2)) * ((d // self.h) ** -0.5) * decay.to(x.dtype)
        s = s / s.float().abs().sum(-1, keepdim=True).clamp(min=1).to(x.dtype)
        y = (s @ v).transpose(1, 2).reshape(b * length, d)
        y = self.norm(y).view(b, length, d)
        return self.o(F.silu(self.g(x)) * y)


def get_inputs():
    return [torch.randn(B, L, D, dtype=torch.float16)]


def get_init_inputs():
    return [D, H]
