"""A conformer's self-attention with relative positions as in Transformer-XL: two biased queries, the shift by padding
and viewing, a mask of lengths, fp16."""

import torch
import torch.nn as nn

BATCH = 8
FRAMES = 750
WIDTH = 512
HEADS = 8


class Model(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        h = torch.float16
        self.heads = heads
        self.norm = nn.LayerNorm(width, dtype=h)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, dtype=h) for _ in range(4))
        self.position = nn.Linear(width, width, bias=False, dtype=h)
        self.content_bias = nn.Parameter((0.1 * torch.randn(heads, width // heads)).to(h))
        self.place_bias = nn.Parameter((0.1 * torch.randn(heads, width // heads)).to(h))

    def shift(self, x):
        b, h, t, n = x.shape
        x = torch.cat((x.new_zeros(b, h, t, 1), x), -1).view(b, h, n + 1, t)
        return x[:, :, 1:].reshape(b, h, t, n)[..., : n // 2 + 1]

    def forward(self, x, places, lengths):
        b, t, w = x.shape
        h, d = self.heads, w // self.heads
        y = self.norm(x)
        q = self.q(y).view(b, t, h, d)
        k = self.k(y).view(b, t, h, d).transpose(1, 2)
        v = self.v(y).view(b, t, h, d).transpose(1, 2)
        p = self.position(places).view(1, -1, h, d).transpose(1, 2)
        content = (q + self.content_bias).transpose(1, 2) @ k.transpose(-1, -2)
        place = (q + self.place_bias).transpose(1, 2) @ p.transpose(-1, -2)
        scores = (content + self.shift(place)) * d**-0.5
        padded = torch.arange(t, device=x.device)[None, :] >= lengths[:, None]
        scores = scores.masked_fill(padded[:, None, None, :], torch.finfo(scores.dtype).min)
        weights = scores.softmax(-1, dtype=torch.float32).to(x.dtype)
        y = (weights @ v).transpose(1, 2).reshape(b, t, w)
        return x + self.out(y)


def get_inputs():
    h = torch.float16
    lengths = torch.randint(FRAMES // 2, FRAMES + 1, (BATCH,))
    return [torch.randn(BATCH, FRAMES, WIDTH, dtype=h), torch.randn(1, 2 * FRAMES - 1, WIDTH, dtype=h), lengths]


def get_init_inputs():
    return [WIDTH, HEADS]
