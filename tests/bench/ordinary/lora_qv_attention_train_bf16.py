"""Fine-tuning with LoRA on queries and values: frozen weights, low-rank products scaled, causal attention, the frozen
output, the residual, trained, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
TOKENS = 2048
WIDTH = 2048
HEADS = 16
RANK = 16


class Lora(nn.Module):
    def __init__(self, width, rank):
        super().__init__()
        self.register_buffer("weight", (torch.randn(width, width) * width**-0.5).bfloat16())
        self.a = nn.Parameter((torch.randn(rank, width) * width**-0.5).bfloat16())
        self.b = nn.Parameter((0.02 * torch.randn(width, rank)).bfloat16())
        self.scale = 32 / rank

    def forward(self, x):
        return F.linear(x, self.weight) + F.linear(F.linear(x, self.a), self.b) * self.scale


class Model(nn.Module):
    def __init__(self, width, heads, rank):
        super().__init__()
        self.heads = heads
        self.q, self.v = Lora(width, rank), Lora(width, rank)
        self.register_buffer("k", (torch.randn(width, width) * width**-0.5).bfloat16())
        self.register_buffer("o", (torch.randn(width, width) * width**-0.5).bfloat16())

    def split(self, x):
        b, t, w = x.shape
        return x.view(b, t, self.heads, w // self.heads).transpose(1, 2)

    def forward(self, x):
        q, k, v = self.split(self.q(x)), self.split(F.linear(x, self.k)), self.split(self.v(x))
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + F.linear(out.transpose(1, 2).reshape(x.shape), self.o)


def get_inputs():
    return [torch.randn(BATCH, TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HEADS, RANK]
