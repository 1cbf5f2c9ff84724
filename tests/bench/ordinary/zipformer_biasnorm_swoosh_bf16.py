"""A feed-forward module of Zipformer with SwooshL, a bypass with a learned scale by channel, BiasNorm at its end, and
frames halved with learned weights, in bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
FRAMES = 256
WIDTH = 256
HIDDEN = 768


class Model(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)
        self.scale = nn.Parameter(torch.full((width,), 0.5))
        self.bias, self.log_scale = nn.Parameter(0.1 * torch.randn(width)), nn.Parameter(torch.zeros(()))
        self.pair = nn.Parameter(torch.zeros(2))
        self.bfloat16()

    def swoosh(self, x):
        return F.softplus(x - 4.0) - 0.08 * x - 0.035

    def forward(self, x):
        y = x + self.down(self.swoosh(self.up(x)))
        y = x + (y - x) * self.scale
        scales = (y - self.bias).float().square().mean(-1, keepdim=True).rsqrt() * self.log_scale.float().exp()
        y = (y.float() * scales).to(x.dtype)
        b, t, c = y.shape
        weights = self.pair.softmax(0)
        return (y.reshape(b, t // 2, 2, c) * weights[:, None]).sum(2)


def get_inputs():
    return [torch.randn(BATCH, FRAMES, WIDTH, dtype=torch.bfloat16)]


def get_init_inputs():
    return [WIDTH, HIDDEN]
