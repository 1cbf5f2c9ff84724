"""Implicit quantile networks: the greedy action's target quantiles, the quantile Huber loss of all pairs, priorities
for the replay, fp32."""

import torch
import torch.nn as nn

BATCH = 2048
QUANTILES = 64
TARGETS = 64
ACTIONS = 18


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.gamma = 0.99

    def forward(self, values, taus, action, online_next, target_next, reward, done, weight):
        best = online_next.mean(1).argmax(-1)
        next_values = target_next.gather(2, best[:, None, None].expand(-1, target_next.shape[1], 1)).squeeze(-1)
        target = reward[:, None] + self.gamma * (1 - done)[:, None] * next_values
        chosen = values.gather(2, action[:, None, None].expand(-1, values.shape[1], 1)).squeeze(-1)
        error = target[:, None, :] - chosen[:, :, None]
        huber = torch.where(error.abs() <= 1, 0.5 * error.square(), error.abs() - 0.5)
        loss = ((taus[:, :, None] - (error < 0).float()).abs() * huber).mean(2).sum(1)
        return (weight * loss).mean(), error.abs().mean(dim=(1, 2)) + 1e-6


def get_inputs():
    return [
        torch.randn(BATCH, QUANTILES, ACTIONS),
        torch.rand(BATCH, QUANTILES),
        torch.randint(0, ACTIONS, (BATCH,)),
        torch.randn(BATCH, QUANTILES, ACTIONS),
        torch.randn(BATCH, TARGETS, ACTIONS),
        torch.randn(BATCH),
        (torch.rand(BATCH) > 0.9).float(),
        torch.rand(BATCH),
    ]


def get_init_inputs():
    return []
