"""Experts of which each token takes four, at decoding: weights in MXFP4 (two codes a byte, a power of two for 32),
gathered by token, clamped SwiGLU, summed by the router's weights, bf16."""

import torch
import torch.nn as nn

TOKENS = 4
WIDTH = 2048
HIDDEN = 1024
EXPERTS = 16
TAKEN = 4


class Model(nn.Module):
    def __init__(self, width, hidden, experts, taken):
        super().__init__()
        self.taken = taken
        self.router = nn.Linear(width, experts, dtype=torch.bfloat16)
        half = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
        self.register_buffer("levels", torch.cat((half, -half)).to(torch.bfloat16))
        self.register_buffer("up", torch.randint(0, 256, (experts, 2 * hidden, width // 2), dtype=torch.uint8))
        self.register_buffer("up_scale", torch.randint(118, 124, (experts, 2 * hidden, width // 32), dtype=torch.uint8))
        self.register_buffer("down", torch.randint(0, 256, (experts, width, hidden // 2), dtype=torch.uint8))
        self.register_buffer("down_scale", torch.randint(118, 124, (experts, width, hidden // 32), dtype=torch.uint8))
        self.up_bias = nn.Parameter(0.1 * torch.randn(experts, 2 * hidden, dtype=torch.bfloat16))

    def weights(self, codes, scales):
        pairs = torch.stack((self.levels[(codes & 15).long()], self.levels[(codes >> 4).long()]), -1)
        values = pairs.view(*scales.shape, 32)
        return torch.ldexp(values, scales.int()[..., None] - 127).view(*codes.shape[:-1], -1)

    def forward(self, x):
        best = torch.topk(self.router(x).float(), self.taken, dim=-1)
        share = best.values.softmax(-1).to(x.dtype)
        up = self.weights(self.up[best.indices], self.up_scale[best.indices])
        y = torch.einsum("teoi,ti->teo", up, x) + self.up_bias[best.indices]
        gate, value = y[..., ::2].clamp(max=7.0), y[..., 1::2].clamp(-7.0, 7.0)
        y = gate * torch.sigmoid(1.702 * gate) * (value + 1)
        down = self.weights(self.down[best.indices], self.down_scale[best.indices])
        y = torch.einsum("tewh,teh->tew", down, y)
        return (y * share[..., None]).sum(1)


def get_inputs():
    return [torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HIDDEN, EXPERTS, TAKEN]
