"""A gated MLP's first half while decoding: int4 weights two to a byte, zeros and scales of groups of 128, fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 4
WIDTH = 4096
HIDDEN = 14336
GROUP = 128


class Model(nn.Module):
    def __init__(self, width, hidden, group):
        super().__init__()
        self.group = group
        for name in ("gate", "up"):
            self.register_buffer(f"{name}_packed", torch.randint(0, 256, (hidden, width // 2), dtype=torch.uint8))
            self.register_buffer(f"{name}_scale", 0.002 + 0.004 * torch.rand(hidden, width // group).half())
            self.register_buffer(f"{name}_zero", torch.randint(5, 11, (hidden, width // group), dtype=torch.uint8))

    def unpack(self, packed, scale, zero):
        low = packed & 0xF
        high = packed >> 4
        q = torch.stack([low, high], dim=-1).reshape(packed.shape[0], -1, self.group)
        w = (q.half() - zero.half()[..., None]) * scale[..., None]
        return w.reshape(packed.shape[0], -1)

    def forward(self, x):
        gate = F.linear(x, self.unpack(self.gate_packed, self.gate_scale, self.gate_zero))
        up = F.linear(x, self.unpack(self.up_packed, self.up_scale, self.up_zero))
        return F.silu(gate) * up


def get_inputs():
    return [torch.randn(TOKENS, WIDTH, dtype=torch.float16)]


def get_init_inputs():
    return [WIDTH, HIDDEN, GROUP]
