"""EfficientViT's multi-scale linear attention: keys and queries through ReLU, a normaliser as one more column of
values, a depthwise 5 x 5 branch beside it, in fp16 with fp32 attention."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
WIDTH = 64
DIM = 16
SIDE = 32


class Model(nn.Module):
    def __init__(self, width, dim):
        super().__init__()
        self.dim = dim
        self.qkv = nn.Conv2d(width, 3 * width, 1, bias=False)
        self.deep = nn.Conv2d(3 * width, 3 * width, 5, padding=2, groups=3 * width, bias=False)
        self.mix = nn.Conv2d(3 * width, 3 * width, 1, groups=3 * width // dim, bias=False)
        self.out = nn.Conv2d(2 * width, width, 1, bias=False)
        self.half()

    def forward(self, x):
        b, _, h, w = x.shape
        one = self.qkv(x)
        many = torch.cat([one, self.mix(self.deep(one))], 1)
        q, k, v = many.reshape(b, -1, 3 * self.dim, h * w).chunk(3, 2)
        q, k, v = F.relu(q.float()), F.relu(k.float()), v.float()
        v = F.pad(v, (0, 0, 0, 1), value=1.0)
        kv = v @ k.transpose(-1, -2)
        y = kv @ q
        y = (y[:, :, :-1] / (y[:, :, -1:] + 1e-5)).to(x.dtype)
        return x + self.out(y.reshape(b, -1, h, w))


def get_inputs():
    return [torch.randn(BATCH, WIDTH, SIDE, SIDE, dtype=torch.float16)]


def get_init_inputs():
    return [WIDTH, DIM]
