"""A NeRF field over samples of rays, composited (cumprod) to colour, depth and opacity. TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

R, S, F_, W = 4096, 64, 64, 128


class Model(nn.Module):
    def __init__(self, features, width):
        super().__init__()
        self.l1, self.l2 = nn.Linear(features, width), nn.Linear(width, width)
        self.density, self.rgb1, self.rgb2 = (
            nn.Linear(width, 1),
            nn.Linear(width + 3, width // 2),
            nn.Linear(width // 2, 3),
        )

    def forward(self, feature, direction, t):
        h = F.relu(self.l2(F.relu(self.l1(feature))))
        sigma = F.softplus(self.density(h).squeeze(-1) - 1)
        d = direction.unsqueeze(1).expand(-1, h.shape[1], -1)
        rgb = torch.sigmoid(self.rgb2(F.relu(self.rgb1(torch.cat((h, d), -1)))))
        delta = torch.cat((t[:, 1:] - t[:, :-1], torch.full_like(t[:, :1], 1e2)), -1)
        alpha = 1 - torch.exp(-sigma * delta)
        trans = torch.cumprod(torch.cat((torch.ones_like(alpha[:, :1]), 1 - alpha + 1e-10), -1), -1)[:, :-1]
        w = alpha * trans
        return (w.unsqueeze(-1) * rgb).sum(1), (w * t).sum(1), w.sum(1)


def get_inputs():
    return [torch.randn(R, S, F_), F.normalize(torch.randn(R, 3), dim=-1), torch.rand(R, S).cumsum(-1)]


def get_init_inputs():
    return [F_, W]
