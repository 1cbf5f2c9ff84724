"""An int8 image and int8 weights, scales by channel, a convolution in fp16, a residual, ReLU, and back to int8."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 16
CHANNELS = 96
OUT = 192
SIZE = 56


class Model(nn.Module):
    def __init__(self, channels, out):
        super().__init__()
        self.register_buffer("weight", torch.randint(-127, 128, (out, channels, 3, 3), dtype=torch.int8))
        self.register_buffer("scale", 0.0005 + 0.0005 * torch.rand(out))
        self.bias = nn.Parameter(0.1 * torch.randn(out, dtype=torch.float16))

    def forward(self, x, x_scale, residual, out_scale):
        w = self.weight.half() * self.scale.half()[:, None, None, None]
        y = F.conv2d(x.half() * x_scale.half(), w, self.bias, padding=1)
        y = F.relu(y + residual)
        q = torch.clamp(torch.round(y.float() / out_scale), -128, 127)
        return q.to(torch.int8), y.amax(dim=(1, 2, 3))


def get_inputs():
    return [
        torch.randint(-127, 128, (BATCH, CHANNELS, SIZE, SIZE), dtype=torch.int8),
        torch.tensor(0.02),
        torch.randn(BATCH, OUT, SIZE, SIZE, dtype=torch.float16),
        torch.tensor(0.05),
    ]


def get_init_inputs():
    return [CHANNELS, OUT]
