"""QLoRA's linear: NF4 codes two to a byte, blocks of 64, their scales quantised again to eight bits, a low-rank
adapter beside it, bf16."""

import torch
import torch.nn as nn

ROWS = 512
IN = 4096
OUT = 4096
BLOCK = 64
RANK = 16


class Model(nn.Module):
    def __init__(self, inputs, outputs, block, rank):
        super().__init__()
        b = torch.bfloat16
        self.outputs, self.block = outputs, block
        blocks = inputs * outputs // block
        self.register_buffer("codes", torch.randint(0, 256, (inputs * outputs // 2,), dtype=torch.uint8))
        self.register_buffer("levels", torch.linspace(-1, 1, 16).pow(3))
        self.register_buffer("absmax", torch.randint(0, 256, (blocks,), dtype=torch.uint8))
        self.register_buffer("steps", torch.linspace(0.001, 0.05, 256))
        self.register_buffer("outer", torch.rand(blocks // 256) + 0.5)
        self.down = nn.Linear(inputs, rank, bias=False, dtype=b)
        self.up = nn.Linear(rank, outputs, bias=False, dtype=b)

    def forward(self, x):
        high, low = self.codes >> 4, self.codes & 15
        values = self.levels[torch.stack((high, low), -1).int()].view(-1, self.block)
        scale = self.steps[self.absmax.int()].view(self.outer.shape[0], -1) * self.outer[:, None]
        weight = (values * scale.view(-1, 1)).to(x.dtype).view(self.outputs, -1)
        return x @ weight.t() + 2.0 * self.up(self.down(x))


def get_inputs():
    return [torch.randn(ROWS, IN, dtype=torch.bfloat16)]


def get_init_inputs():
    return [IN, OUT, BLOCK, RANK]
