"""Stable Diffusion 3's joint attention: text and image streams with their own projections and RMS norms attend
together, gated residuals, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
IMAGE_TOKENS = 4096
TEXT_TOKENS = 154
WIDTH = 1536
HEADS = 24


class Stream(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.mod = nn.Linear(width, 3 * width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.qkv = nn.Linear(width, 3 * width)
        self.q_norm = nn.RMSNorm(width // heads, eps=1e-6)
        self.k_norm = nn.RMSNorm(width // heads, eps=1e-6)
        self.proj = nn.Linear(width, width)

    def split(self, x, c):
        shift, scale, gate = self.mod(F.silu(c)).unsqueeze(1).chunk(3, dim=-1)
        y = self.norm(x) * (1 + scale) + shift
        b, t, d = x.shape
        q, k, v = self.qkv(y).view(b, t, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        return self.q_norm(q), self.k_norm(k), v, gate


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.text = Stream(width, heads)
        self.image = Stream(width, heads)
        self.to(torch.bfloat16)

    def forward(self, image, text, c):
        qt, kt, vt, gt = self.text.split(text, c)
        qi, ki, vi, gi = self.image.split(image, c)
        q, k, v = (torch.cat(pair, dim=2) for pair in ((qt, qi), (kt, ki), (vt, vi)))
        y = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        yt, yi = y[:, : text.shape[1]], y[:, text.shape[1] :]
        return image + gi * self.image.proj(yi), text + gt * self.text.proj(yt)


def get_inputs():
    return [
        torch.randn(BATCH, IMAGE_TOKENS, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, TEXT_TOKENS, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, WIDTH, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return [WIDTH, HEADS]
