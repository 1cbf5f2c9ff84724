"""A sampler that drops the likeliest: top-a by the square of the greatest probability, then XTC, which takes away all
but the least likely of those above a threshold, a given Gumbel draw, the token and its log probability, fp32."""

import torch
import torch.nn as nn

REQUESTS = 64
VOCABULARY = 128256


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.threshold = 0.1

    def forward(self, logits, temperature, strength, coin, uniform):
        probability = torch.softmax(logits / temperature[:, None], -1)
        top = probability.amax(-1, keepdim=True)
        kept = probability >= strength[:, None] * top.square()
        above = probability >= self.threshold
        least = torch.where(above, probability, torch.full_like(probability, 2.0)).amin(-1, keepdim=True)
        several = above.sum(-1, keepdim=True) > 1
        dropped = above & (probability > least) & several & (coin < 0.5)[:, None]
        left = torch.where(kept & ~dropped, probability, torch.zeros_like(probability))
        left = left / left.sum(-1, keepdim=True).clamp(min=1e-20)
        noise = -torch.log(-torch.log(uniform.clamp(1e-10, 1 - 1e-7)))
        scores = torch.where(left > 0, left.clamp(min=1e-30).log() + noise, torch.full_like(left, float("-inf")))
        token = scores.argmax(-1)
        return token, left.gather(-1, token[:, None]).squeeze(-1).clamp(min=1e-30).log()


def get_inputs():
    return [
        4 * torch.randn(REQUESTS, VOCABULARY),
        0.5 + torch.rand(REQUESTS),
        0.3 * torch.rand(REQUESTS),
        torch.rand(REQUESTS),
        torch.rand(REQUESTS, VOCABULARY),
    ]


def get_init_inputs():
    return []
