"""One tile after another of a splatted scene: 128 sorted Gaussians on 256 pixels, transmittance by a running product,
colour, depth and coverage, fp32."""

import torch
import torch.nn as nn

TILES = 512
SPLATS = 128
PIXELS = 256


class Model(nn.Module):
    def __init__(self, pixels):
        super().__init__()
        side = int(pixels**0.5)
        place = torch.arange(pixels)
        self.register_buffer("grid", torch.stack([place % side, place // side], -1).float() + 0.5)

    def forward(self, centre, conic, opacity, colour, depth, background):
        d = self.grid[None, :, None, :] - centre[:, None, :, :]
        a, b, c = conic.unbind(-1)
        power = -0.5 * (a[:, None] * d[..., 0] ** 2 + c[:, None] * d[..., 1] ** 2) - b[:, None] * d[..., 0] * d[..., 1]
        alpha = (opacity[:, None] * torch.exp(power.clamp(max=0))).clamp(max=0.99)
        alpha = torch.where(alpha < 1 / 255, torch.zeros_like(alpha), alpha)
        through = torch.cumprod(1 - alpha, dim=-1)
        before = torch.cat([torch.ones_like(through[..., :1]), through[..., :-1]], dim=-1)
        weight = alpha * before
        image = weight @ colour + through[..., -1:] * background
        return image, (weight * depth[:, None]).sum(-1), 1 - through[..., -1]


def get_inputs():
    return [
        16 * torch.rand(TILES, SPLATS, 2),
        torch.rand(TILES, SPLATS, 3) * torch.tensor([0.2, 0.02, 0.2]) + torch.tensor([0.05, 0.0, 0.05]),
        torch.rand(TILES, SPLATS),
        torch.rand(TILES, SPLATS, 3),
        torch.rand(TILES, SPLATS).sort(-1)[0],
        torch.rand(3),
    ]


def get_init_inputs():
    return [PIXELS]
