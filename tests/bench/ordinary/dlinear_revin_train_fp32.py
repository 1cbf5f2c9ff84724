"""DLinear with reversible normalisation: a moving average parts trend and season, a linear map of time for each, the
statistics put back, mean absolute error, trained."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 32
PAST = 336
AHEAD = 96
CHANNELS = 21
KERNEL = 25


class Model(nn.Module):
    def __init__(self, past, ahead, channels, kernel):
        super().__init__()
        self.kernel = kernel
        self.season, self.trend = nn.Linear(past, ahead), nn.Linear(past, ahead)
        self.gain, self.shift = nn.Parameter(torch.ones(channels)), nn.Parameter(torch.zeros(channels))

    def forward(self, x, target):
        mean = x.mean(1, keepdim=True)
        std = torch.sqrt(x.var(1, keepdim=True, unbiased=False) + 1e-5)
        y = ((x - mean) / std * self.gain + self.shift).transpose(1, 2)
        padded = F.pad(y, (self.kernel // 2, self.kernel // 2), mode="replicate")
        trend = F.avg_pool1d(padded, self.kernel, stride=1)
        out = (self.season(y - trend) + self.trend(trend)).transpose(1, 2)
        out = (out - self.shift) / (self.gain + 1e-5) * std + mean
        return F.l1_loss(out, target)


def get_inputs():
    return [torch.randn(BATCH, PAST, CHANNELS).cumsum(1) * 0.1, torch.randn(BATCH, AHEAD, CHANNELS)]


def get_init_inputs():
    return [PAST, AHEAD, CHANNELS, KERNEL]
