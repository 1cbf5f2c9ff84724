"""A GPTQ linear with activation order: four-bit weights packed eight to an int32 along the inputs, a group for each
input by index, packed zeros, scales, a bias, a GELU, fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

ROWS = 64
IN = 4096
OUT = 4096
GROUPS = 32


class Model(nn.Module):
    def __init__(self, inputs, outputs, groups):
        super().__init__()
        self.register_buffer("packed", torch.randint(-(2**31), 2**31 - 1, (inputs // 8, outputs), dtype=torch.int32))
        self.register_buffer("zeros", torch.randint(-(2**31), 2**31 - 1, (groups, outputs // 8), dtype=torch.int32))
        self.register_buffer("scales", 0.01 * torch.rand(groups, outputs, dtype=torch.float16) + 0.001)
        self.register_buffer("group", torch.randint(0, groups, (inputs,)))
        self.register_buffer("shifts", 4 * torch.arange(8, dtype=torch.int32))
        self.bias = nn.Parameter(torch.randn(outputs, dtype=torch.float16))

    def forward(self, x):
        weight = (self.packed[:, None, :] >> self.shifts[None, :, None]) & 15
        weight = weight.reshape(-1, self.packed.shape[1])
        zero = ((self.zeros[:, :, None] >> self.shifts[None, None, :]) & 15).reshape(self.zeros.shape[0], -1) + 1
        full = self.scales[self.group] * (weight - zero[self.group]).to(x.dtype)
        return F.gelu(x @ full + self.bias, approximate="tanh")


def get_inputs():
    return [torch.randn(ROWS, IN, dtype=torch.float16)]


def get_init_inputs():
    return [IN, OUT, GROUPS]
