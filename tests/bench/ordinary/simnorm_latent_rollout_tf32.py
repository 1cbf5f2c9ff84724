"""A world model's latent rollout: five steps of normed Mish layers that end in a simplicial norm, a reward of 101 bins
at each, its expectation through a symmetric exponential, the discounted return, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

PLANS = 2048
LATENT = 512
ACTION = 8
STEPS = 5
BINS = 101


class Model(nn.Module):
    def __init__(self, latent, action, bins):
        super().__init__()
        self.first = nn.Linear(latent + action, latent)
        self.first_norm = nn.LayerNorm(latent)
        self.second = nn.Linear(latent, latent)
        self.second_norm = nn.LayerNorm(latent)
        self.reward = nn.Linear(latent + action, latent)
        self.reward_norm = nn.LayerNorm(latent)
        self.bins = nn.Linear(latent, bins)
        self.register_buffer("support", torch.linspace(-10, 10, bins))

    def simnorm(self, x):
        return x.view(x.shape[0], -1, 8).softmax(-1).view_as(x)

    def forward(self, z, actions):
        total, discount = 0.0, 1.0
        for step in range(actions.shape[0]):
            za = torch.cat((z, actions[step]), -1)
            logits = self.bins(F.mish(self.reward_norm(self.reward(za))))
            mean = (logits.softmax(-1) * self.support).sum(-1)
            total = total + discount * mean.sign() * (mean.abs().exp() - 1)
            z = F.mish(self.first_norm(self.first(za)))
            z = self.simnorm(self.second_norm(self.second(z)))
            discount = discount * 0.99
        return total, z


def get_inputs():
    return [torch.rand(PLANS, LATENT), torch.rand(STEPS, PLANS, ACTION) * 2 - 1]


def get_init_inputs():
    return [LATENT, ACTION, BINS]
