"""A ViT-L encoder block with LayerScale (DINOv2), bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, N, D, H = 16, 257, 1024, 16


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width, eps=1e-6), nn.LayerNorm(width, eps=1e-6)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.fc1, self.fc2 = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gamma1 = nn.Parameter(torch.rand(width) * 0.1)
        self.gamma2 = nn.Parameter(torch.rand(width) * 0.1)
        self.to(torch.bfloat16)

    def forward(self, x):
        b, n, d = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        a = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(b, n, d)
        x = x + self.gamma1 * self.proj(a)
        return x + self.gamma2 * self.fc2(F.gelu(self.fc1(self.norm2(x))))


def get_inputs():
    return [torch.randn(B, N, D, dtype=torch.bfloat16)]


def get_init_inputs():
    return [D, H]
