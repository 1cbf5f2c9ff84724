"""Hyper-connections: four residual streams, gates from their norm, a doubly stochastic mix by Sinkhorn, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 4096
STREAMS = 4
WIDTH = 2048
ROUNDS = 8


class Model(nn.Module):
    def __init__(self, streams, width, rounds):
        super().__init__()
        self.rounds = rounds
        self.norm = nn.Parameter(torch.ones(streams * width))
        self.maps = nn.Parameter(0.02 * torch.randn(streams * (streams + 2), streams * width))
        self.bias = nn.Parameter(0.1 * torch.randn(streams * (streams + 2)))

    def forward(self, streams, inner):
        t, n, c = streams.shape
        flat = streams.reshape(t, n * c).float()
        flat = flat * torch.rsqrt(flat.square().mean(-1, keepdim=True) + 1e-6) * self.norm
        gates = F.linear(flat, self.maps, self.bias)
        pre = torch.sigmoid(gates[:, :n])
        post = 2 * torch.sigmoid(gates[:, n : 2 * n])
        mix = torch.exp(gates[:, 2 * n :].view(t, n, n).clamp(-10, 10))
        for _ in range(self.rounds):
            mix = mix / mix.sum(-1, keepdim=True)
            mix = mix / mix.sum(-2, keepdim=True)
        layer_in = (pre[..., None] * streams.float()).sum(1)
        out = mix @ streams.float() + post[..., None] * inner.float()[:, None, :]
        return layer_in.to(streams.dtype), out.to(streams.dtype)


def get_inputs():
    return [torch.randn(TOKENS, STREAMS, WIDTH, dtype=torch.bfloat16), torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [STREAMS, WIDTH, ROUNDS]
