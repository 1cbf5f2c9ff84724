"""A linear layer as DeepSeek serves it: activations quantised to e4m3 by 1 x 128, weights kept in e4m3 by 128 x 128,
bf16 out."""

import torch
import torch.nn as nn

TOKENS = 4096
IN_FEATURES = 7168
OUT_FEATURES = 2048
BLOCK = 128


class Model(nn.Module):
    def __init__(self, fan_in, fan_out):
        super().__init__()
        w = torch.randn(fan_out, fan_in) * 0.02
        blocks = w.view(fan_out // BLOCK, BLOCK, fan_in // BLOCK, BLOCK)
        scale = blocks.abs().amax(dim=(1, 3), keepdim=True) / 448.0
        self.register_buffer("weight", (blocks / scale).view(fan_out, fan_in).to(torch.float8_e4m3fn))
        self.register_buffer("scale", scale.view(fan_out // BLOCK, fan_in // BLOCK))

    def forward(self, x):
        t, k = x.shape
        xb = x.view(t, k // BLOCK, BLOCK).float()
        s = xb.abs().amax(dim=-1, keepdim=True).clamp(min=1e-4) / 448.0
        xq = (xb / s).to(torch.float8_e4m3fn)
        x_deq = (xq.float() * s).view(t, k)
        w_deq = self.weight.float() * self.scale.repeat_interleave(BLOCK, 0).repeat_interleave(BLOCK, 1)
        return x_deq.to(torch.bfloat16) @ w_deq.to(torch.bfloat16).t()


def get_inputs():
    return [torch.randn(TOKENS, IN_FEATURES, dtype=torch.bfloat16)]


def get_init_inputs():
    return [IN_FEATURES, OUT_FEATURES]
