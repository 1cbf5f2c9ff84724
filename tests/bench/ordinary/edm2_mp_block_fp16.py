"""A block of EDM2: magnitudes are kept by a norm of pixels, a scaled SiLU, weights of unit length for each filter, a
gain of the noise's embedding and a weighted sum with what came in, clipped, fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
CHANNELS = 192
SIZE = 64
EMBEDDING = 768


class Model(nn.Module):
    def __init__(self, channels, embedding):
        super().__init__()
        self.first = nn.Parameter(torch.randn(channels, channels, 3, 3))
        self.second = nn.Parameter(torch.randn(channels, channels, 3, 3))
        self.embed = nn.Parameter(torch.randn(channels, embedding))
        self.gain = nn.Parameter(torch.tensor(0.5))

    def unit(self, weight, dtype):
        flat = weight.flatten(1)
        norm = torch.linalg.vector_norm(flat, dim=1, keepdim=True) * flat.shape[1] ** -0.5
        unit = flat / (1e-4 + norm) / flat.shape[1] ** 0.5
        return unit.view_as(weight).to(dtype)

    def forward(self, x, noise):
        size = torch.linalg.vector_norm(x, dim=1, keepdim=True, dtype=torch.float32) * x.shape[1] ** -0.5
        x = x / (1e-4 + size).to(x.dtype)
        y = F.conv2d(F.silu(x) / 0.596, self.unit(self.first, x.dtype), padding=1)
        c = F.linear(noise, self.unit(self.embed, x.dtype)) * self.gain.to(x.dtype) + 1
        y = F.silu(y * c[:, :, None, None]) / 0.596
        y = F.conv2d(y, self.unit(self.second, x.dtype), padding=1)
        mixed = torch.lerp(x, y, 0.3) / (0.7**2 + 0.3**2) ** 0.5
        return mixed.clip(-256, 256)


def get_inputs():
    return [
        torch.randn(BATCH, CHANNELS, SIZE, SIZE, dtype=torch.float16),
        torch.randn(BATCH, EMBEDDING, dtype=torch.float16),
    ]


def get_init_inputs():
    return [CHANNELS, EMBEDDING]
