"""A vocoder's spectral loss at two resolutions: spectral convergence and log-magnitude distance of two waves."""

import torch
import torch.nn as nn

B, T, SIZES = 32, 131072, ((1024, 256), (512, 128))


class Model(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.sizes = sizes
        for n, _ in sizes:
            self.register_buffer(f"w{n}", torch.hann_window(n))

    def magnitude(self, x, n, hop):
        f = x.unfold(-1, n, hop) * getattr(self, f"w{n}")
        s = torch.fft.rfft(f)
        return torch.sqrt((s.real**2 + s.imag**2).clamp_min(1e-7))

    def forward(self, x, y):
        loss = 0.0
        for n, hop in self.sizes:
            a, b = self.magnitude(x, n, hop), self.magnitude(y, n, hop)
            loss = (
                loss + torch.linalg.vector_norm(b - a) / torch.linalg.vector_norm(b) + (b.log() - a.log()).abs().mean()
            )
        return loss / len(self.sizes)


def get_inputs():
    return [torch.randn(B, T) * 0.1, torch.randn(B, T) * 0.1]


def get_init_inputs():
    return [SIZES]
