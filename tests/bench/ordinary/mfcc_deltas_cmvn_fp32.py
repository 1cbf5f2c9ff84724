"""MFCCs from power spectra: mel filters, logarithms, a cosine transform, lifter, first and second differences by
regression over five frames, mean and variance normalised by utterance."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 16
FRAMES = 600
BINS = 257
MELS = 80
COEFFICIENTS = 20


class Model(nn.Module):
    def __init__(self, bins, mels, coefficients):
        super().__init__()
        centres = torch.linspace(0, bins - 1, mels + 2)
        at = torch.arange(bins)[:, None]
        up = (at - centres[:-2]) / (centres[1:-1] - centres[:-2])
        down = (centres[2:] - at) / (centres[2:] - centres[1:-1])
        self.register_buffer("filters", torch.minimum(up, down).clamp(min=0))
        n = torch.arange(mels)[:, None]
        k = torch.arange(coefficients)
        self.register_buffer("dct", torch.cos(torch.pi / mels * (n + 0.5) * k) * (2.0 / mels) ** 0.5)
        self.register_buffer("lifter", 1 + 11.0 * torch.sin(torch.pi * k / 22.0))

    def delta(self, x):
        p = F.pad(x.transpose(1, 2), (2, 2), mode="replicate").transpose(1, 2)
        t = x.shape[1]
        return (2 * p[:, 4:] + p[:, 3 : t + 3] - p[:, 1 : t + 1] - 2 * p[:, :t]) / 10.0

    def forward(self, power):
        mel = torch.log(power @ self.filters + 1e-6)
        c = (mel @ self.dct) * self.lifter
        first = self.delta(c)
        features = torch.cat([c, first, self.delta(first)], -1)
        mean = features.mean(1, keepdim=True)
        std = features.std(1, keepdim=True)
        return (features - mean) / (std + 1e-5)


def get_inputs():
    return [torch.rand(BATCH, FRAMES, BINS) ** 2]


def get_init_inputs():
    return [BINS, MELS, COEFFICIENTS]
