"""Guidance of flow matching as in CFG-Zero*: the unconditional velocity projected on the conditional one by sample,
a norm that is not to grow past its own, and an Euler step, latents in fp16."""

import torch
import torch.nn as nn

BATCH = 8
CHANNELS = 16
SIDE = 96


class Model(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.scale = scale

    def forward(self, x, velocity, sigma, following):
        uncond, cond = velocity.float().chunk(2)
        flat_u, flat_c = uncond.flatten(1), cond.flatten(1)
        star = (flat_c * flat_u).sum(1) / (flat_u.square().sum(1) + 1e-8)
        star = star[:, None, None, None]
        guided = uncond * star + self.scale * (cond - uncond * star)
        limit = cond.flatten(1).norm(dim=1) / guided.flatten(1).norm(dim=1).clamp(min=1e-6)
        guided = guided * limit.clamp(max=1.0)[:, None, None, None]
        new = x.float() + (following - sigma)[:, None, None, None] * guided
        clean = x.float() - sigma[:, None, None, None] * guided
        return new.to(x.dtype), clean.to(x.dtype)


def get_inputs():
    sigma = torch.rand(BATCH) * 0.5 + 0.4
    return [
        torch.randn(BATCH, CHANNELS, SIDE, SIDE, dtype=torch.float16),
        torch.randn(2 * BATCH, CHANNELS, SIDE, SIDE, dtype=torch.float16),
        sigma,
        sigma - 0.05,
    ]


def get_init_inputs():
    return [4.5]
