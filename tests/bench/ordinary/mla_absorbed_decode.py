"""One decode step of multi-head latent attention with absorbed projections, over the latent cache."""

import torch
from torch import nn

BATCH, HEADS, SEQ, RANK, ROPE = 32, 16, 2048, 512, 64


class Model(nn.Module):
    def forward(self, q_latent, q_rope, cache, lengths):
        latent, rope = cache[..., :RANK], cache[..., RANK:]
        scores = torch.matmul(q_latent, latent.transpose(1, 2)) + torch.matmul(q_rope, rope.transpose(1, 2))
        scores = scores.float() * (RANK // 4 + ROPE) ** -0.5
        past = torch.arange(SEQ, device=cache.device)[None, None, :] < lengths[:, None, None]
        scores = scores.masked_fill(~past, float("-inf"))
        return torch.matmul(torch.softmax(scores, -1).to(cache.dtype), latent)


def get_inputs():
    q = torch.randn(BATCH, HEADS, RANK, dtype=torch.bfloat16), torch.randn(BATCH, HEADS, ROPE, dtype=torch.bfloat16)
    cache = torch.randn(BATCH, SEQ, RANK + ROPE, dtype=torch.bfloat16)
    return [*q, cache, torch.randint(SEQ // 2, SEQ, (BATCH,))]


def get_init_inputs():
    return []
