"""Holt-Winters, additive, over many series at once: level, trend and season by a loop, a season of forecasts, fp32."""

import torch
import torch.nn as nn

SERIES = 20000
STEPS = 96
SEASON = 12


class Model(nn.Module):
    def __init__(self, season):
        super().__init__()
        self.season = season

    def forward(self, y, alpha, beta, gamma):
        m = self.season
        level = y[:, :m].mean(dim=1)
        trend = (y[:, m : 2 * m].mean(dim=1) - level) / m
        seasonal = [y[:, i] - level for i in range(m)]
        error = torch.zeros_like(level)
        for t in range(m, y.shape[1]):
            s = seasonal[t % m]
            value = y[:, t]
            error = error + (value - level - trend - s) ** 2
            new = alpha * (value - s) + (1 - alpha) * (level + trend)
            trend = beta * (new - level) + (1 - beta) * trend
            seasonal[t % m] = gamma * (value - new) + (1 - gamma) * s
            level = new
        end = y.shape[1]
        forecast = [level + (h + 1) * trend + seasonal[(end + h) % m] for h in range(m)]
        return torch.stack(forecast, dim=1), error / (end - m)


def get_inputs():
    t = torch.arange(STEPS, dtype=torch.float32)
    y = 10 + 0.05 * t + 2 * torch.sin(2 * torch.pi * t / SEASON) + 0.5 * torch.randn(SERIES, STEPS)
    return [y, 0.1 + 0.4 * torch.rand(SERIES), 0.05 + 0.1 * torch.rand(SERIES), 0.1 + 0.3 * torch.rand(SERIES)]


def get_init_inputs():
    return [SEASON]
