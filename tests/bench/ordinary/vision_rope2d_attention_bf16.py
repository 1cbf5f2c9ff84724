"""A vision encoder's attention: RMS norms of queries and keys, rotations by row and by column, all patches see all,
bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

IMAGES = 4
SIDE = 28
HEADS = 16
WIDTH = 1152


class Model(nn.Module):
    def __init__(self, heads, width):
        super().__init__()
        self.heads = heads
        d = width // heads
        self.qkv = nn.Linear(width, 3 * width, dtype=torch.bfloat16)
        self.out = nn.Linear(width, width, dtype=torch.bfloat16)
        self.q_norm = nn.Parameter(torch.ones(d, dtype=torch.bfloat16))
        self.k_norm = nn.Parameter(torch.ones(d, dtype=torch.bfloat16))

    def rotate(self, x, cos, sin):
        half = x.shape[-1] // 2
        turned = torch.cat([-x[..., half:], x[..., :half]], dim=-1)
        return (x.float() * cos + turned.float() * sin).to(x.dtype)

    def norm(self, x, w):
        v = x.float()
        return (v * torch.rsqrt(v.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * w

    def forward(self, x, rows, columns):
        b, n, c = x.shape
        d = c // self.heads
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d).permute(2, 0, 3, 1, 4).unbind(0)
        inverse = 10000.0 ** (-torch.arange(0, d // 2, 2, device=x.device).float() / (d // 2))
        angles = torch.cat([rows[:, None] * inverse, columns[:, None] * inverse], dim=-1)
        cos, sin = torch.cat([angles, angles], -1).cos(), torch.cat([angles, angles], -1).sin()
        q = self.rotate(self.norm(q, self.q_norm), cos, sin)
        k = self.rotate(self.norm(k, self.k_norm), cos, sin)
        y = F.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(b, n, c))


def get_inputs():
    return [
        torch.randn(IMAGES, SIDE * SIDE, WIDTH, dtype=torch.bfloat16),
        torch.arange(SIDE).repeat_interleave(SIDE).float(),
        torch.arange(SIDE).repeat(SIDE).float(),
    ]


def get_init_inputs():
    return [HEADS, WIDTH]
