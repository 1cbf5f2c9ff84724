"""One step of lattice Boltzmann, D2Q9: moments, equilibrium, relaxation, streaming, bounce-back at obstacles, fp32."""

import torch
import torch.nn as nn

HEIGHT = 2048
WIDTH = 2048


class Model(nn.Module):
    def __init__(self, tau):
        super().__init__()
        self.tau = tau
        c = [(0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (1, 1), (-1, 1), (-1, -1), (1, -1)]
        self.c = c
        self.opposite = [0, 3, 4, 1, 2, 7, 8, 5, 6]
        self.register_buffer("w", torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4))
        self.register_buffer("cx", torch.tensor([float(a) for a, _ in c]))
        self.register_buffer("cy", torch.tensor([float(b) for _, b in c]))

    def forward(self, f, solid):
        rho = f.sum(dim=0)
        ux = torch.einsum("i,ihw->hw", self.cx, f) / rho
        uy = torch.einsum("i,ihw->hw", self.cy, f) / rho
        cu = 3 * (self.cx[:, None, None] * ux + self.cy[:, None, None] * uy)
        feq = rho * self.w[:, None, None] * (1 + cu + 0.5 * cu**2 - 1.5 * (ux**2 + uy**2))
        post = f - (f - feq) / self.tau
        post = torch.where(solid, f[self.opposite], post)
        out = [torch.roll(post[i], shifts=(self.c[i][1], self.c[i][0]), dims=(0, 1)) for i in range(9)]
        return torch.stack(out)


def get_inputs():
    f = torch.tensor([4 / 9] + [1 / 9] * 4 + [1 / 36] * 4)[:, None, None]
    return [
        f * (1 + 0.1 * torch.rand(9, HEIGHT, WIDTH)),
        torch.rand(HEIGHT, WIDTH) < 0.05,
    ]


def get_init_inputs():
    return [0.6]
