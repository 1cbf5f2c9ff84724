"""nnU-Net stage: a strided 3-d convolution and another, each with instance norm and leaky ReLU. TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, CI, CO, S = 2, 32, 64, 64


class Model(nn.Module):
    def __init__(self, ci, co):
        super().__init__()
        self.c1 = nn.Conv3d(ci, co, 3, stride=2, padding=1)
        self.c2 = nn.Conv3d(co, co, 3, padding=1)
        self.n1, self.n2 = nn.InstanceNorm3d(co, affine=True), nn.InstanceNorm3d(co, affine=True)

    def forward(self, x):
        x = F.leaky_relu(self.n1(self.c1(x)), 0.01)
        return F.leaky_relu(self.n2(self.c2(x)), 0.01)


def get_inputs():
    return [torch.randn(B, CI, S, S, S)]


def get_init_inputs():
    return [CI, CO]
