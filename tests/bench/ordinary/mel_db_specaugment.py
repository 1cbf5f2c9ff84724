"""Audio: power to mel bands, decibels limited by each clip's maximum, bands and frames masked (TF32 allowed)."""

import torch
from torch import nn

BATCH, FREQ, FRAMES, MELS = 32, 513, 1000, 80


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("bank", torch.rand(MELS, FREQ) * (torch.rand(MELS, FREQ) < 0.05))

    def forward(self, real, imag, f0, fw, t0, tw):
        power = real * real + imag * imag
        mel = torch.matmul(self.bank, power)
        db = 10.0 * torch.log10(mel.clamp(min=1e-10))
        db = torch.maximum(db, db.amax((1, 2), keepdim=True) - 80.0)
        f = torch.arange(MELS, device=real.device)[None, :, None]
        t = torch.arange(FRAMES, device=real.device)[None, None, :]
        hide = (f >= f0[:, None, None]) & (f < (f0 + fw)[:, None, None])
        hide = hide | ((t >= t0[:, None, None]) & (t < (t0 + tw)[:, None, None]))
        return db.masked_fill(hide, 0.0)


def get_inputs():
    spectrum = [torch.randn(BATCH, FREQ, FRAMES) for _ in range(2)]
    bands = torch.randint(0, MELS - 10, (BATCH,)), torch.randint(0, 10, (BATCH,))
    return [*spectrum, *bands, torch.randint(0, FRAMES - 50, (BATCH,)), torch.randint(0, 50, (BATCH,))]


def get_init_inputs():
    return []
