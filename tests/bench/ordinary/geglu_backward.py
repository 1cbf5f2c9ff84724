"""GeGLU (tanh) of a fused gate and up projection: output again and the gradient, in fp16."""

import torch
from torch import nn

ROWS, HIDDEN = 8192, 2816


class Model(nn.Module):
    def forward(self, both, grad):
        gate, up = both.float().chunk(2, -1)
        g = grad.float()
        inner = 0.7978845608 * (gate + 0.044715 * gate * gate * gate)
        t = torch.tanh(inner)
        act = 0.5 * gate * (1.0 + t)
        slope = 0.5 * (1.0 + t) + 0.5 * gate * (1.0 - t * t) * 0.7978845608 * (1.0 + 3 * 0.044715 * gate * gate)
        return (act * up).half(), torch.cat([g * up * slope, g * act], -1).half()


def get_inputs():
    return [torch.randn(ROWS, 2 * HIDDEN, dtype=torch.float16), torch.randn(ROWS, HIDDEN, dtype=torch.float16)]


def get_init_inputs():
    return []
