"""A sequential recommender's HSTU block: SiLU in the place of softmax, biases by distance and by time, a gate, a
sampled loss, trained, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 16
STEPS = 200
WIDTH = 256
HEADS = 4
BUCKETS = 64


class Model(nn.Module):
    def __init__(self, steps, width, heads, buckets):
        super().__init__()
        self.heads = heads
        self.uvqk = nn.Linear(width, 4 * width)
        self.out = nn.Linear(width, width)
        self.by_time = nn.Parameter(0.02 * torch.randn(buckets))
        self.by_place = nn.Parameter(0.02 * torch.randn(2 * steps - 1))

    def forward(self, x, times, positive, negative):
        b, n, c = x.shape
        d = c // self.heads
        u, v, q, k = F.silu(self.uvqk(F.layer_norm(x, (c,)))).chunk(4, dim=-1)
        q, k, v = (t.reshape(b, n, self.heads, d).transpose(1, 2) for t in (q, k, v))
        gap = (times[:, :, None] - times[:, None, :]).abs().clamp(min=1).float()
        bucket = (gap.log() / 0.301).long().clamp(max=self.by_time.shape[0] - 1)
        place = torch.arange(n, device=x.device)
        bias = self.by_time[bucket] + self.by_place[place[:, None] - place[None, :] + n - 1]
        scores = F.silu(q @ k.transpose(-1, -2) + bias[:, None]) / n
        scores = scores * torch.ones(n, n, device=x.device).tril()
        y = (scores @ v).transpose(1, 2).reshape(b, n, c)
        h = x + self.out(F.layer_norm(y, (c,)) * u)
        up = (h * positive).sum(-1)
        down = torch.einsum("bnc,kc->bnk", h, negative)
        return (torch.logsumexp(torch.cat([up[..., None], down], -1) / 8.0, -1) - up / 8.0).mean()


def get_inputs():
    return [
        torch.randn(BATCH, STEPS, WIDTH),
        torch.randint(0, 1 << 20, (BATCH, STEPS)),
        torch.randn(BATCH, STEPS, WIDTH),
        torch.randn(128, WIDTH),
    ]


def get_init_inputs():
    return [STEPS, WIDTH, HEADS, BUCKETS]
