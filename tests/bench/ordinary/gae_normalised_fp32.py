"""Generalised advantage estimation over a rollout, advantages normalised over all of it, and returns."""

import torch
import torch.nn as nn

T, B = 64, 65536


class Model(nn.Module):
    def __init__(self, gamma, lam):
        super().__init__()
        self.gamma, self.lam = gamma, lam

    def forward(self, reward, value, last, done):
        keep = 1.0 - done
        following = torch.cat((value[1:], last[None]))
        delta = reward + self.gamma * following * keep - value
        running = torch.zeros_like(last)
        steps = []
        for t in range(reward.shape[0] - 1, -1, -1):
            running = delta[t] + self.gamma * self.lam * keep[t] * running
            steps.append(running)
        adv = torch.stack(steps[::-1])
        return (adv - adv.mean()) / (adv.std() + 1e-8), adv + value


def get_inputs():
    return [torch.randn(T, B), torch.randn(T, B), torch.randn(B), (torch.rand(T, B) > 0.95).float()]


def get_init_inputs():
    return [0.99, 0.95]
