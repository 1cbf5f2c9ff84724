"""BitNet b1.58 in serving: activations normalised and rounded to 8 bits by token, four ternary weights to a byte
unpacked, their product scaled back, squared ReLU and a gate, in bf16."""

import torch
import torch.nn as nn

TOKENS = 64
WIDTH = 768
HIDDEN = 1024


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.register_buffer("packed", torch.randint(0, 81, (2 * hidden, width // 4), dtype=torch.uint8))
        self.register_buffer("scale", torch.rand(2) * 0.02 + 0.01)
        self.weight = nn.Parameter(torch.ones(width, dtype=torch.bfloat16))

    def unpack(self):
        p = self.packed.int()
        digits = [p % 3, p // 3 % 3, p // 9 % 3, p // 27 % 3]
        return torch.stack(digits, -1).flatten(1).float() - 1.0

    def forward(self, x):
        y = x.float()
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * self.weight.float()
        step = 127.0 / y.abs().amax(-1, keepdim=True).clamp(min=1e-5)
        rounded = (y * step).round().clamp(-128, 127)
        both = rounded @ self.unpack().t() / step
        gate, up = both.chunk(2, -1)
        return (torch.relu(gate * self.scale[0]).square() * up * self.scale[1]).to(x.dtype)


def get_inputs():
    return [torch.randn(TOKENS, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HIDDEN]
