"""A batch of Kalman filters: prediction and update with four measurements, the gain by a Cholesky solve, gated by the
Mahalanobis distance."""

import torch
import torch.nn as nn

TRACKS = 16384
STATE = 8
MEASURED = 4


class Model(nn.Module):
    def __init__(self, state, measured):
        super().__init__()
        f = torch.eye(state)
        f[:measured, measured:] = 0.1 * torch.eye(measured)
        self.register_buffer("f", f)
        self.register_buffer("h", torch.eye(measured, state))
        self.register_buffer("q", 0.01 * torch.eye(state))
        self.register_buffer("r", 0.1 * torch.eye(measured))

    def forward(self, x, root, z):
        p = root @ root.transpose(1, 2) + torch.eye(x.shape[1], device=x.device)
        x = x @ self.f.t()
        p = self.f @ p @ self.f.t() + self.q
        innovation = z - x @ self.h.t()
        s = self.h @ p @ self.h.t() + self.r
        chol = torch.linalg.cholesky(s)
        gain = torch.cholesky_solve(self.h @ p, chol).transpose(1, 2)
        white = torch.linalg.solve_triangular(chol, innovation.unsqueeze(-1), upper=False)
        distance = white.square().sum(dim=(1, 2))
        inside = (distance < 13.3).unsqueeze(-1)
        moved = x + (gain @ innovation.unsqueeze(-1)).squeeze(-1)
        joseph = torch.eye(x.shape[1], device=x.device) - gain @ self.h
        updated = joseph @ p @ joseph.transpose(1, 2) + gain @ self.r @ gain.transpose(1, 2)
        return torch.where(inside, moved, x), torch.where(inside.unsqueeze(-1), updated, p), distance


def get_inputs():
    return [torch.randn(TRACKS, STATE), 0.3 * torch.randn(TRACKS, STATE, STATE), torch.randn(TRACKS, MEASURED)]


def get_init_inputs():
    return [STATE, MEASURED]
