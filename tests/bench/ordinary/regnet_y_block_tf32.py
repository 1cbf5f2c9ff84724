"""A RegNetY block: 1x1, grouped 3x3, squeeze and excitation, 1x1, shortcut; batch norms of inference. TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, C, S, G = 16, 336, 28, 8


class Model(nn.Module):
    def __init__(self, c, groups):
        super().__init__()
        self.c1, self.c3 = nn.Conv2d(c, c, 1, bias=False), nn.Conv2d(c, c, 1, bias=False)
        self.c2 = nn.Conv2d(c, c, 3, padding=1, groups=groups, bias=False)
        self.n1, self.n2, self.n3 = nn.BatchNorm2d(c), nn.BatchNorm2d(c), nn.BatchNorm2d(c)
        self.s1, self.s2 = nn.Conv2d(c, c // 4, 1), nn.Conv2d(c // 4, c, 1)
        self.eval()

    def forward(self, x):
        h = F.relu(self.n1(self.c1(x)))
        h = F.relu(self.n2(self.c2(h)))
        s = h.mean((2, 3), keepdim=True)
        h = h * torch.sigmoid(self.s2(F.relu(self.s1(s))))
        return F.relu(self.n3(self.c3(h)) + x)


def get_inputs():
    return [torch.randn(B, C, S, S)]


def get_init_inputs():
    return [C, G]
