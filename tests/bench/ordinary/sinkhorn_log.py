"""Ten steps of log-domain Sinkhorn, the transport and its cost."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, y):
        cost = torch.cdist(x, y).square()
        k = -cost / 0.5
        f = torch.zeros(x.shape[0], x.shape[1], device=x.device)
        g = torch.zeros(y.shape[0], y.shape[1], device=x.device)
        for _ in range(10):
            f = -torch.logsumexp(k + g[:, None, :], 2)
            g = -torch.logsumexp(k + f[:, :, None], 1)
        p = torch.exp(k + f[:, :, None] + g[:, None, :])
        return p, (p * cost).sum((1, 2))


def get_inputs():
    return [torch.randn(8, 128, 16), torch.randn(8, 96, 16)]


def get_init_inputs():
    return []
