"""AlphaFold's outgoing triangle update in float32: two norms, six products, gates, one einsum."""

import torch
import torch.nn as nn

BATCH, SIDE, WIDTH = 2, 256, 128


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.left_proj = nn.Linear(width, width, bias=False)
        self.right_proj = nn.Linear(width, width, bias=False)
        self.left_gate = nn.Linear(width, width, bias=False)
        self.right_gate = nn.Linear(width, width, bias=False)
        self.out_gate = nn.Linear(width, width, bias=False)
        self.to_out_norm = nn.LayerNorm(width)
        self.to_out = nn.Linear(width, width, bias=False)

    def forward(self, x, mask):
        x = self.norm(x)
        mask = mask.unsqueeze(-1)
        left = self.left_proj(x) * mask * self.left_gate(x).sigmoid()
        right = self.right_proj(x) * mask * self.right_gate(x).sigmoid()
        out = torch.einsum("bikd,bjkd->bijd", left, right)
        return self.to_out(self.to_out_norm(out) * self.out_gate(x).sigmoid())


def get_inputs():
    return [torch.randn(BATCH, SIDE, SIDE, WIDTH), torch.randint(0, 2, (BATCH, SIDE, SIDE)).float()]


def get_init_inputs():
    return [WIDTH]
