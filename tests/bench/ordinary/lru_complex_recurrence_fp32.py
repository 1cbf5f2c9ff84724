"""A linear recurrent unit: stable complex eigenvalues by exponentials, inputs projected and normalised, 128 steps of
the recurrence in real parts, outputs through a real projection and a gated residual."""

import torch
import torch.nn as nn

BATCH = 16
STEPS = 128
WIDTH = 128
STATE = 128


class Model(nn.Module):
    def __init__(self, width, state):
        super().__init__()
        self.nu = nn.Parameter(torch.log(-0.5 * torch.log(torch.rand(state) * 0.19 + 0.8)))
        self.theta = nn.Parameter(torch.log(6.28 * torch.rand(state) + 1e-3))
        self.b_re, self.b_im = nn.Linear(width, state, bias=False), nn.Linear(width, state, bias=False)
        self.c_re, self.c_im = nn.Linear(state, width, bias=False), nn.Linear(state, width, bias=False)
        self.d = nn.Parameter(torch.randn(width))

    def forward(self, u):
        size = torch.exp(-torch.exp(self.nu))
        angle = torch.exp(self.theta)
        a_re, a_im = size * torch.cos(angle), size * torch.sin(angle)
        gamma = torch.sqrt(1 - size * size)
        in_re, in_im = self.b_re(u) * gamma, self.b_im(u) * gamma
        re, im = torch.zeros_like(in_re[:, 0]), torch.zeros_like(in_im[:, 0])
        res, ims = [], []
        for t in range(u.shape[1]):
            re, im = a_re * re - a_im * im + in_re[:, t], a_re * im + a_im * re + in_im[:, t]
            res.append(re)
            ims.append(im)
        y = self.c_re(torch.stack(res, 1)) - self.c_im(torch.stack(ims, 1)) + self.d * u
        return u + y * torch.sigmoid(y)


def get_inputs():
    return [torch.randn(BATCH, STEPS, WIDTH)]


def get_init_inputs():
    return [WIDTH, STATE]
