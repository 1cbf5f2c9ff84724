"""Layer norm, cyclic shift and partition to windows, and windows merged, shifted back and added, in fp16."""

import torch
from torch import nn

BATCH, SIDE, DIM, WINDOW = 16, 112, 192, 7


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(DIM, dtype=torch.float16)

    def forward(self, x, windows, keep):
        n, s = SIDE // WINDOW, WINDOW // 2
        h = torch.roll(self.norm(x), (-s, -s), (1, 2))
        out = h.view(BATCH, n, WINDOW, n, WINDOW, DIM).permute(0, 1, 3, 2, 4, 5).reshape(-1, WINDOW * WINDOW, DIM)
        back = windows.view(BATCH, n, n, WINDOW, WINDOW, DIM).permute(0, 1, 3, 2, 4, 5).reshape(BATCH, SIDE, SIDE, DIM)
        back = torch.roll(back, (s, s), (1, 2))
        return out, x + back * keep[:, None, None, None]


def get_inputs():
    n = (SIDE // WINDOW) ** 2
    x = torch.randn(BATCH, SIDE, SIDE, DIM, dtype=torch.float16)
    windows = torch.randn(BATCH * n, WINDOW * WINDOW, DIM, dtype=torch.float16)
    return [x, windows, (torch.rand(BATCH) < 0.9).half() / 0.9]


def get_init_inputs():
    return []
