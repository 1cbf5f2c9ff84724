"""Signals of many stocks: returns, rolling mean, deviation and correlation with the market over 20 days, exponential
averages, the cross-section's rank-free z-score, clipped, fp32."""

import torch
import torch.nn as nn

DAYS = 2520
STOCKS = 3000
WINDOW = 20


class Model(nn.Module):
    def __init__(self, window):
        super().__init__()
        self.window = window

    def rolling_mean(self, x):
        c = torch.cumsum(torch.nn.functional.pad(x, (1, 0)), dim=-1)
        return (c[:, self.window :] - c[:, : -self.window]) / self.window

    def forward(self, price, volume):
        r = torch.log(price[:, 1:] / price[:, :-1])
        market = r.mean(dim=0, keepdim=True)
        mean = self.rolling_mean(r)
        var = (self.rolling_mean(r * r) - mean**2).clamp(min=1e-10)
        m_mean = self.rolling_mean(market)
        m_var = (self.rolling_mean(market * market) - m_mean**2).clamp(min=1e-12)
        cov = self.rolling_mean(r * market) - mean * m_mean
        beta = cov / m_var
        windows = volume.unfold(-1, self.window, 1)
        surge = volume[:, self.window :] / windows[:, :-1].median(dim=-1).values
        high = price[:, 1:].unfold(-1, self.window, 1).amax(dim=-1)
        drawdown = price[:, self.window :] / high - 1
        signal = mean / var.sqrt() - 0.1 * beta + 0.2 * torch.log(surge) + drawdown
        z = (signal - signal.mean(dim=0)) / signal.std(dim=0)
        return z.clamp(-3, 3)


def get_inputs():
    steps = 0.02 * torch.randn(STOCKS, DAYS)
    return [50 * torch.exp(0.3 * torch.cumsum(steps, dim=1)), 1e6 * (0.5 + torch.rand(STOCKS, DAYS))]


def get_init_inputs():
    return [WINDOW]
