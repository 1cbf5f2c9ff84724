"""The analytic signal by FFT: envelope, instantaneous phase steps, and the wave divided by its smoothed envelope."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, T, K = 256, 65536, 9


class Model(nn.Module):
    def __init__(self, t, k):
        super().__init__()
        self.k = k
        h = torch.zeros(t)
        h[0] = h[t // 2] = 1
        h[1 : t // 2] = 2
        self.register_buffer("h", h)

    def forward(self, x):
        z = torch.fft.ifft(torch.fft.fft(x) * self.h)
        env = z.abs()
        turn = z[:, 1:] * z[:, :-1].conj()
        step = torch.atan2(turn.imag, turn.real)
        smooth = F.avg_pool1d(env.unsqueeze(1), self.k, 1, self.k // 2).squeeze(1)
        return env, step, x / (smooth + 1e-6)


def get_inputs():
    return [torch.randn(B, T)]


def get_init_inputs():
    return [T, K]
