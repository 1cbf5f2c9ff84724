"""QuaRot's linear: tokens turned by a fast Hadamard transform in butterflies, quantised to four bits by token, times
packed four-bit weights scaled by row, fp16."""

import torch
import torch.nn as nn

TOKENS = 2048
IN = 4096
OUT = 4096


class Model(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.register_buffer("packed", torch.randint(0, 256, (outputs, inputs // 2), dtype=torch.uint8))
        self.register_buffer("scale", (torch.rand(outputs) * 0.02 + 0.005).half())

    def hadamard(self, x):
        rows, n = x.shape
        h = 1
        while h < n:
            pairs = x.view(rows, n // (2 * h), 2, h)
            a, b = pairs[:, :, 0], pairs[:, :, 1]
            x = torch.stack((a + b, a - b), 2).view(rows, n)
            h *= 2
        return x * n**-0.5

    def forward(self, x):
        y = self.hadamard(x.float())
        step = (y.abs().amax(-1, keepdim=True) / 7).clamp(min=1e-6)
        codes = torch.clamp(torch.round(y / step), -8, 7)
        low, high = (self.packed & 15).to(torch.int8) - 8, (self.packed >> 4).to(torch.int8) - 8
        weight = torch.stack((low, high), -1).flatten(-2).half()
        out = codes.half() @ weight.t() * step.half()
        return out * self.scale


def get_inputs():
    return [torch.randn(TOKENS, IN, dtype=torch.float16)]


def get_init_inputs():
    return [IN, OUT]
