"""Hyena's long convolution by FFT, with skip and gate."""

import torch
from torch import nn

BATCH, D, SEQ = 4, 256, 4096


class Model(nn.Module):
    def forward(self, u, k, bias, gate):
        n = 2 * SEQ
        y = torch.fft.irfft(torch.fft.rfft(u, n=n) * torch.fft.rfft(k, n=n), n=n)[..., :SEQ]
        return (y + u * bias[:, None]) * torch.sigmoid(gate)


def get_inputs():
    k = torch.randn(D, SEQ) * torch.exp(-torch.arange(SEQ) / 200.0)
    return [torch.randn(BATCH, D, SEQ), k, torch.randn(D), torch.randn(BATCH, D, SEQ)]


def get_init_inputs():
    return []
