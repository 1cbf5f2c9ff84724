"""One decode step of a gated delta rule (Qwen3-Next): decay, correction, output, norm of q and k."""

import torch
from torch import nn

BATCH, HEADS, KEY, VALUE = 64, 16, 128, 128


class Model(nn.Module):
    def forward(self, state, q, k, v, g, beta):
        q = q.float() * torch.rsqrt(q.float().pow(2).sum(-1, keepdim=True) + 1e-6) * KEY**-0.5
        k = k.float() * torch.rsqrt(k.float().pow(2).sum(-1, keepdim=True) + 1e-6)
        state = state * torch.exp(g)[..., None, None]
        known = (state * k[..., None]).sum(-2)
        delta = (v.float() - known) * beta[..., None]
        state = state + k[..., None] * delta[..., None, :]
        out = (state * q[..., None]).sum(-2)
        return out.to(v.dtype), state


def get_inputs():
    q, k = (torch.randn(BATCH, HEADS, KEY, dtype=torch.bfloat16) for _ in range(2))
    v = torch.randn(BATCH, HEADS, VALUE, dtype=torch.bfloat16)
    return [torch.randn(BATCH, HEADS, KEY, VALUE), q, k, v, -torch.rand(BATCH, HEADS), torch.rand(BATCH, HEADS)]


def get_init_inputs():
    return []
