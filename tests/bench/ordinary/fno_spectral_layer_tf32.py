"""A Fourier neural operator's layer in two dimensions: low modes weighted, a pointwise path, GELU. TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, C, S, MODES = 16, 64, 128, 16


class Model(nn.Module):
    def __init__(self, c, modes):
        super().__init__()
        self.modes = modes
        self.w1 = nn.Parameter(torch.randn(c, c, modes, modes, 2) / c)
        self.w2 = nn.Parameter(torch.randn(c, c, modes, modes, 2) / c)
        self.point = nn.Conv2d(c, c, 1)

    def forward(self, x):
        m = self.modes
        f = torch.fft.rfft2(x)
        out = torch.zeros_like(f)
        out[:, :, :m, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, :m, :m], torch.view_as_complex(self.w1))
        out[:, :, -m:, :m] = torch.einsum("bixy,ioxy->boxy", f[:, :, -m:, :m], torch.view_as_complex(self.w2))
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.point(x))


def get_inputs():
    return [torch.randn(B, C, S, S)]


def get_init_inputs():
    return [C, MODES]
