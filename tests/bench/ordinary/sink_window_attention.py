"""gpt-oss: attention with a learned sink for each head and a window of 128 tokens, bf16."""

import torch
from torch import nn

BATCH, HEADS, SEQ, HEAD, WINDOW = 2, 16, 1024, 64, 128


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.sinks = nn.Parameter(torch.randn(HEADS, dtype=torch.bfloat16))

    def forward(self, q, k, v):
        scores = torch.matmul(q, k.transpose(-2, -1)) * HEAD**-0.5
        i = torch.arange(SEQ, device=q.device)
        away = (i[None, :] > i[:, None]) | (i[:, None] - i[None, :] >= WINDOW)
        scores = scores.masked_fill(away, float("-inf"))
        sinks = self.sinks.view(1, HEADS, 1, 1).expand(BATCH, HEADS, SEQ, 1)
        both = torch.cat([scores, sinks], -1).float()
        both = both - both.amax(-1, keepdim=True)
        probs = torch.softmax(both, -1)[..., :-1]
        return torch.matmul(probs.to(v.dtype), v)


def get_inputs():
    return [torch.randn(BATCH, HEADS, SEQ, HEAD, dtype=torch.bfloat16) for _ in range(3)]


def get_init_inputs():
    return []
