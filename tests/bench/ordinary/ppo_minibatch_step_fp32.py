"""A minibatch of PPO for continuous control: policy and value MLPs, clipped surrogate, clipped value loss, entropy, all
gradients, their norm clipped, one Adam step, fp32."""

import math

import torch
import torch.nn as nn

BATCH = 32768
STATE = 48
ACTIONS = 12
HIDDEN = 256


class Model(nn.Module):
    def __init__(self, state, actions, hidden):
        super().__init__()
        self.actor = nn.Sequential(
            nn.Linear(state, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(), nn.Linear(hidden, actions)
        )
        self.critic = nn.Sequential(
            nn.Linear(state, hidden), nn.ELU(), nn.Linear(hidden, hidden), nn.ELU(), nn.Linear(hidden, 1)
        )
        self.log_std = nn.Parameter(torch.zeros(actions))
        for i, p in enumerate(list(self.parameters())):
            self.register_buffer(f"m{i}", 0.01 * torch.randn_like(p))
            self.register_buffer(f"v{i}", 1e-4 * torch.rand_like(p) + 1e-6)

    def loss(self, state, action, old_logp, advantage, returns, old_value):
        mean = self.actor(state)
        std = self.log_std.exp()
        logp = (-0.5 * ((action - mean) / std) ** 2 - self.log_std - 0.5 * math.log(2 * math.pi)).sum(-1)
        entropy = (0.5 + 0.5 * math.log(2 * math.pi) + self.log_std).sum()
        adv = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = (logp - old_logp).exp()
        surrogate = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        value = self.critic(state).squeeze(-1)
        clipped = old_value + (value - old_value).clamp(-0.2, 0.2)
        value_loss = torch.max((value - returns) ** 2, (clipped - returns) ** 2).mean()
        return surrogate + value_loss - 0.005 * entropy

    def forward(self, state, action, old_logp, advantage, returns, old_value):
        with torch.enable_grad():
            loss = self.loss(state, action, old_logp, advantage, returns, old_value)
            grads = torch.autograd.grad(loss, list(self.parameters()))
        norm = torch.sqrt(sum(g.pow(2).sum() for g in grads))
        scale = torch.clamp(1.0 / (norm + 1e-6), max=1.0)
        new, moments, squares = [], [], []
        for i, (p, g) in enumerate(zip(self.parameters(), grads, strict=True)):
            m = 0.9 * getattr(self, f"m{i}") + 0.1 * scale * g
            v = 0.999 * getattr(self, f"v{i}") + 0.001 * (scale * g) ** 2
            new.append(p - 3e-4 * (m / 0.271) / ((v / 0.002997).sqrt() + 1e-8))
            moments.append(m)
            squares.append(v)
        return (loss.detach(), norm, *new, *moments, *squares)


def get_inputs():
    return [
        torch.randn(BATCH, STATE),
        torch.randn(BATCH, ACTIONS),
        -17 + 2 * torch.randn(BATCH),
        torch.randn(BATCH),
        torch.randn(BATCH),
        torch.randn(BATCH),
    ]


def get_init_inputs():
    return [STATE, ACTIONS, HIDDEN]
