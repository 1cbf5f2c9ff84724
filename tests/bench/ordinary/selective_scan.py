"""Mamba's selective scan written as a loop over time, state of 16."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, D, SEQ, STATE = 8, 1024, 64, 16


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.A_log = nn.Parameter(torch.log(torch.arange(1, STATE + 1).float()).repeat(D, 1))
        self.D = nn.Parameter(torch.ones(D))

    def forward(self, u, delta, B, C):
        A = -torch.exp(self.A_log)
        delta = F.softplus(delta)
        h = torch.zeros(BATCH, D, STATE, device=u.device)
        ys = []
        for t in range(SEQ):
            dt = delta[:, :, t].unsqueeze(-1)
            h = torch.exp(dt * A) * h + dt * B[:, None, :, t] * u[:, :, t].unsqueeze(-1)
            ys.append((h * C[:, None, :, t]).sum(-1))
        return torch.stack(ys, dim=-1) + u * self.D[None, :, None]


def get_inputs():
    u, delta = torch.randn(BATCH, D, SEQ), torch.randn(BATCH, D, SEQ)
    return [u, delta, torch.randn(BATCH, STATE, SEQ), torch.randn(BATCH, STATE, SEQ)]


def get_init_inputs():
    return []
