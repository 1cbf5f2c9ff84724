"""DreamerV3's critic head: lambda returns of an imagined rollout through symlog into two-hot targets over bins, cross
entropy weighed by discounts, a term towards a slow critic, trained."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 256
HORIZON = 15
WIDTH = 128
BINS = 255


class Model(nn.Module):
    def __init__(self, width, bins):
        super().__init__()
        self.hidden, self.head = nn.Linear(width, width), nn.Linear(width, bins)
        self.norm = nn.LayerNorm(width)
        self.register_buffer("bins", torch.linspace(-20, 20, bins))

    def symexp(self, x):
        return torch.sign(x) * (torch.exp(x.abs().clamp(max=20.0)) - 1)

    def twohot(self, x):
        x = torch.sign(x) * torch.log1p(x.abs())
        apart = (x[..., None] - self.bins).abs() / (self.bins[1] - self.bins[0])
        return (1 - apart).clamp(min=0)

    def forward(self, features, reward, alive, slow):
        logits = self.head(F.silu(self.norm(self.hidden(features))))
        value = self.symexp((logits.detach().softmax(-1) * self.bins).sum(-1))
        last = value[:, -1]
        returns = []
        for t in range(reward.shape[1] - 1, -1, -1):
            last = reward[:, t] + 0.997 * alive[:, t] * (0.05 * value[:, t] + 0.95 * last)
            returns.append(last)
        target = torch.stack(returns[::-1], 1)
        weight = torch.cumprod(0.997 * alive, 1)
        logp = logits.log_softmax(-1)
        loss = -(self.twohot(target) * logp).sum(-1)
        pull = -(slow.softmax(-1) * logp).sum(-1)
        return (weight * (loss + pull)).mean()


def get_inputs():
    return [
        torch.randn(BATCH, HORIZON, WIDTH),
        torch.randn(BATCH, HORIZON),
        (torch.rand(BATCH, HORIZON) > 0.05).float(),
        torch.randn(BATCH, HORIZON, BINS),
    ]


def get_init_inputs():
    return [WIDTH, BINS]
