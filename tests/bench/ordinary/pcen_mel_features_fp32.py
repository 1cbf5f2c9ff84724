"""Audio features: mel energies of power spectra, a smoothed background by a recurrence over frames, per-channel energy
normalisation, deltas, fp32."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 32
BINS = 513
FRAMES = 400
MELS = 128


class Model(nn.Module):
    def __init__(self, bins, mels):
        super().__init__()
        self.register_buffer("mel", torch.rand(mels, bins) * (torch.rand(mels, bins) > 0.9))
        self.alpha = nn.Parameter(torch.full((mels, 1), 0.98))
        self.delta = nn.Parameter(torch.full((mels, 1), 2.0))
        self.root = nn.Parameter(torch.full((mels, 1), 0.5))

    def forward(self, real, imaginary):
        energy = self.mel @ (real.square() + imaginary.square())
        level = energy[..., 0]
        levels = [level]
        for t in range(1, energy.shape[-1] // 4):
            level = 0.96 * level + 0.04 * energy[..., 4 * t]
            levels.append(level)
        smooth = torch.stack(levels, -1).repeat_interleave(4, dim=-1)
        gain = torch.exp(-self.alpha * torch.log(smooth + 1e-6))
        y = (energy * gain + self.delta) ** self.root - self.delta**self.root
        padded = F.pad(y, (2, 2), mode="replicate")
        slope = (2 * (padded[..., 4:] - padded[..., :-4]) + padded[..., 3:-1] - padded[..., 1:-3]) / 10
        return torch.stack([y, slope], dim=1)


def get_inputs():
    return [torch.randn(BATCH, BINS, FRAMES), torch.randn(BATCH, BINS, FRAMES)]


def get_init_inputs():
    return [BINS, MELS]
