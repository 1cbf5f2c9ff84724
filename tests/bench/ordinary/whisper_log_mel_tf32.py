"""Whisper's log-mel front end: windowed frames, power spectrum, mel filters, log10, eight decades kept, TF32
allowed."""

import math

import torch
import torch.nn as nn

BATCH = 16
SAMPLES = 480000
FFT = 400
HOP = 160
MELS = 128


class Model(nn.Module):
    def __init__(self, fft, hop, mels):
        super().__init__()
        self.fft, self.hop = fft, hop
        self.register_buffer("window", torch.hann_window(fft))
        top = 2595 * math.log10(1 + 8000 / 700)
        hz = 700 * (10 ** (torch.linspace(0, top, mels + 2) / 2595) - 1)
        bins = torch.linspace(0, 8000, fft // 2 + 1)
        up = (bins[None] - hz[:-2, None]) / (hz[1:-1] - hz[:-2])[:, None]
        down = (hz[2:, None] - bins[None]) / (hz[2:] - hz[1:-1])[:, None]
        self.register_buffer("filters", torch.minimum(up, down).clamp(min=0))

    def forward(self, audio):
        stft = torch.stft(audio, self.fft, self.hop, window=self.window, return_complex=True)
        power = stft[..., :-1].abs() ** 2
        mel = self.filters @ power
        log = torch.clamp(mel, min=1e-10).log10()
        log = torch.maximum(log, log.amax(dim=(1, 2), keepdim=True) - 8.0)
        return (log + 4.0) / 4.0


def get_inputs():
    return [0.1 * torch.randn(BATCH, SAMPLES)]


def get_init_inputs():
    return [FFT, HOP, MELS]
