"""A step of electromagnetics on Yee's grid in three dimensions: curls by differences, magnetic then electric field with
losses, a soft source, fp32."""

import torch
import torch.nn as nn

SIZE = 192


class Model(nn.Module):
    def __init__(self, courant):
        super().__init__()
        self.courant = courant

    def forward(self, e, h, ca, cb, amplitude):
        s = self.courant
        ex, ey, ez = e[0], e[1], e[2]
        hx, hy, hz = h[0].clone(), h[1].clone(), h[2].clone()
        hx[:, :-1, :-1] += s * ((ey[:, :-1, 1:] - ey[:, :-1, :-1]) - (ez[:, 1:, :-1] - ez[:, :-1, :-1]))
        hy[:-1, :, :-1] += s * ((ez[1:, :, :-1] - ez[:-1, :, :-1]) - (ex[:-1, :, 1:] - ex[:-1, :, :-1]))
        hz[:-1, :-1, :] += s * ((ex[:-1, 1:, :] - ex[:-1, :-1, :]) - (ey[1:, :-1, :] - ey[:-1, :-1, :]))
        new = ca * e
        new[0, :, 1:, 1:] += cb[:, 1:, 1:] * ((hz[:, 1:, 1:] - hz[:, :-1, 1:]) - (hy[:, 1:, 1:] - hy[:, 1:, :-1]))
        new[1, 1:, :, 1:] += cb[1:, :, 1:] * ((hx[1:, :, 1:] - hx[1:, :, :-1]) - (hz[1:, :, 1:] - hz[:-1, :, 1:]))
        new[2, 1:, 1:, :] += cb[1:, 1:, :] * ((hy[1:, 1:, :] - hy[:-1, 1:, :]) - (hx[1:, 1:, :] - hx[1:, :-1, :]))
        c = e.shape[1] // 2
        new[2, c, c, :] += amplitude
        return new, torch.stack([hx, hy, hz])


def get_inputs():
    return [
        torch.randn(3, SIZE, SIZE, SIZE),
        torch.randn(3, SIZE, SIZE, SIZE),
        0.9 + 0.1 * torch.rand(SIZE, SIZE, SIZE),
        0.4 + 0.1 * torch.rand(SIZE, SIZE, SIZE),
        torch.randn(SIZE),
    ]


def get_init_inputs():
    return [0.5]
