"""Distributional Q-learning (C51): dueling heads over 51 atoms, double-Q choice of the next action, the target
projected onto the atoms by scattering, cross entropy with importance weights, trained, fp32."""

import torch
import torch.nn as nn

BATCH = 4096
STATE = 256
HIDDEN = 512
ACTIONS = 18
ATOMS = 51
LOW = -10.0
HIGH = 10.0


class Model(nn.Module):
    def __init__(self, state, hidden, actions, atoms, low, high):
        super().__init__()
        self.actions, self.atoms, self.low, self.high = actions, atoms, low, high
        self.body = nn.Linear(state, hidden)
        self.value = nn.Linear(hidden, atoms)
        self.advantage = nn.Linear(hidden, actions * atoms)
        self.register_buffer("support", torch.linspace(low, high, atoms))

    def log_probs(self, x):
        h = torch.relu(self.body(x))
        v = self.value(h)[:, None, :]
        a = self.advantage(h).view(-1, self.actions, self.atoms)
        return torch.log_softmax(v + a - a.mean(dim=1, keepdim=True), dim=-1)

    def forward(self, state, action, reward, done, following, target_probs, weight):
        with torch.no_grad():
            q = (self.log_probs(following).exp() * self.support).sum(-1)
            best = q.argmax(dim=1)
            p = target_probs[torch.arange(state.shape[0], device=state.device), best]
            tz = (reward[:, None] + 0.99 * (1 - done[:, None]) * self.support).clamp(self.low, self.high)
            b = (tz - self.low) / ((self.high - self.low) / (self.atoms - 1))
            low, up = b.floor().long(), b.ceil().long()
            low = torch.where((up > 0) & (low == up), low - 1, low)
            up = torch.where((low < self.atoms - 1) & (low == up), up + 1, up)
            m = torch.zeros_like(p)
            m.scatter_add_(1, low, p * (up.float() - b))
            m.scatter_add_(1, up, p * (b - low.float()))
        logp = self.log_probs(state)
        chosen = logp.gather(1, action[:, None, None].expand(-1, 1, self.atoms)).squeeze(1)
        return (-(m * chosen).sum(-1) * weight).mean()


def get_inputs():
    return [
        torch.randn(BATCH, STATE),
        torch.randint(0, ACTIONS, (BATCH,)),
        torch.randn(BATCH),
        (torch.rand(BATCH) < 0.05).float(),
        torch.randn(BATCH, STATE),
        torch.softmax(torch.randn(BATCH, ACTIONS, ATOMS), dim=-1),
        0.2 + 0.8 * torch.rand(BATCH),
    ]


def get_init_inputs():
    return [STATE, HIDDEN, ACTIONS, ATOMS, LOW, HIGH]
