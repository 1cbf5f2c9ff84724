"""European options: prices of calls and puts, delta, gamma, vega, theta, rho, and three Newton steps to the implied
volatility, fp32."""

import math

import torch
import torch.nn as nn

OPTIONS = 8000000


class Model(nn.Module):
    def cdf(self, x):
        return 0.5 * (1 + torch.erf(x / math.sqrt(2)))

    def pdf(self, x):
        return torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)

    def price(self, s, k, t, r, sigma):
        root = sigma * torch.sqrt(t)
        d1 = (torch.log(s / k) + (r + 0.5 * sigma**2) * t) / root
        d2 = d1 - root
        discount = k * torch.exp(-r * t)
        return s * self.cdf(d1) - discount * self.cdf(d2), d1, d2, discount

    def forward(self, s, k, t, r, sigma, market):
        call, d1, d2, discount = self.price(s, k, t, r, sigma)
        put = call - s + discount
        delta = self.cdf(d1)
        gamma = self.pdf(d1) / (s * sigma * torch.sqrt(t))
        vega = s * self.pdf(d1) * torch.sqrt(t)
        theta = -s * self.pdf(d1) * sigma / (2 * torch.sqrt(t)) - r * discount * self.cdf(d2)
        rho = t * discount * self.cdf(d2)
        implied = sigma
        for _ in range(3):
            c, e1, _, _ = self.price(s, k, t, r, implied)
            slope = (s * self.pdf(e1) * torch.sqrt(t)).clamp(min=1e-3)
            implied = (implied - (c - market) / slope).clamp(0.05, 2.0)
        return call, put, delta, gamma, vega, theta, rho, implied


def get_inputs():
    s = 80 + 40 * torch.rand(OPTIONS)
    k = s * (0.85 + 0.3 * torch.rand(OPTIONS))
    t = 0.25 + 1.5 * torch.rand(OPTIONS)
    market = (s - k).clamp(min=0) + 0.12 * s * torch.sqrt(t)
    return [s, k, t, 0.01 + 0.04 * torch.rand(OPTIONS), 0.2 + 0.3 * torch.rand(OPTIONS), market]


def get_init_inputs():
    return []
