"""An Evoformer's outer product mean: a norm, two narrow projections under a mask, the mean of outer products over
sequences, a projection to pairs, TF32 allowed."""

import torch
import torch.nn as nn

SEQUENCES = 128
RESIDUES = 192
WIDTH = 256
HIDDEN = 32
PAIRS = 128


class Model(nn.Module):
    def __init__(self, width, hidden, pairs):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.left, self.right = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.out = nn.Linear(hidden * hidden, pairs)

    def forward(self, msa, mask, pair):
        m = self.norm(msa)
        a = self.left(m) * mask[..., None]
        b = self.right(m) * mask[..., None]
        outer = torch.einsum("sic,sjd->ijcd", a, b)
        count = torch.einsum("si,sj->ij", mask, mask)
        outer = outer.flatten(2) / (count[..., None] + 1e-3)
        return pair + self.out(outer)


def get_inputs():
    return [
        torch.randn(SEQUENCES, RESIDUES, WIDTH),
        (torch.rand(SEQUENCES, RESIDUES) > 0.1).float(),
        torch.randn(RESIDUES, RESIDUES, PAIRS),
    ]


def get_init_inputs():
    return [WIDTH, HIDDEN, PAIRS]
