"""BigVGAN's periodic unit: twice as many samples by a transposed filter, snake with logarithmic parameters, half as
many by a strided filter, then a dilated convolution, twice over, residual, fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
CHANNELS = 128
SAMPLES = 8192
TAPS = 12


class Model(nn.Module):
    def __init__(self, channels, taps):
        super().__init__()
        h = torch.float16
        window = torch.kaiser_window(taps, periodic=False, beta=4.66) * torch.sinc((torch.arange(taps) - 5.5) * 0.5)
        self.register_buffer("filter", (window / window.sum()).view(1, 1, -1).to(h))
        self.frequency = nn.ParameterList(nn.Parameter(0.3 * torch.randn(channels).to(h)) for _ in range(2))
        self.size = nn.ParameterList(nn.Parameter(0.3 * torch.randn(channels).to(h)) for _ in range(2))
        self.convs = nn.ModuleList(nn.Conv1d(channels, channels, 3, padding=r, dilation=r, dtype=h) for r in (3, 1))

    def activate(self, x, frequency, size):
        c = x.shape[1]
        y = F.pad(x, (5, 5), mode="replicate")
        y = 2 * F.conv_transpose1d(y, self.filter.expand(c, -1, -1), stride=2, groups=c)[..., 15:-15]
        y = y + torch.sin(y * frequency.exp()[:, None]).square() / (size.exp()[:, None] + 1e-4)
        y = F.pad(y, (5, 6), mode="replicate")
        return F.conv1d(y, self.filter.expand(c, -1, -1), stride=2, groups=c)

    def forward(self, x):
        y = x
        for conv, frequency, size in zip(self.convs, self.frequency, self.size, strict=True):
            y = conv(self.activate(y, frequency, size))
        return x + y


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SAMPLES, dtype=torch.float16)]


def get_init_inputs():
    return [CHANNELS, TAPS]
