"""One decoding step against a KV cache of unequal lengths, grouped queries."""

import torch
from torch import nn

BATCH, CACHE, HEADS, KV, HEAD = 32, 4096, 32, 8, 128


class Model(nn.Module):
    def forward(self, q, k_cache, v_cache, lengths):
        q = q.view(BATCH, KV, HEADS // KV, HEAD)
        scores = torch.einsum("bghd,bgtd->bght", q, k_cache).float() * HEAD**-0.5
        seen = torch.arange(CACHE, device=q.device)[None, :] < lengths[:, None]
        scores = scores.masked_fill(~seen[:, None, None, :], float("-inf"))
        p = torch.softmax(scores, dim=-1).to(q.dtype)
        return torch.einsum("bght,bgtd->bghd", p, v_cache).reshape(BATCH, HEADS, HEAD)


def get_inputs():
    q = torch.randn(BATCH, HEADS, HEAD, dtype=torch.bfloat16)
    cache = [torch.randn(BATCH, KV, CACHE, HEAD, dtype=torch.bfloat16) for _ in range(2)]
    return [q, *cache, torch.randint(1, CACHE + 1, (BATCH,))]


def get_init_inputs():
    return []
