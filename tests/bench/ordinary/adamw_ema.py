"""An AdamW step with an EMA of the weights, fp32 masters and a bf16 copy."""

import torch
from torch import nn

N = 16 * 1024 * 1024


class Model(nn.Module):
    def forward(self, p, grad, m, v, ema):
        lr, b1, b2, eps, wd, step = 3e-4, 0.9, 0.95, 1e-8, 0.1, 100
        g = grad.float()
        m = b1 * m + (1 - b1) * g
        v = b2 * v + (1 - b2) * g * g
        mh, vh = m / (1 - b1**step), v / (1 - b2**step)
        p = p * (1 - lr * wd) - lr * mh / (vh.sqrt() + eps)
        ema = torch.lerp(ema, p, 0.001)
        return p, m, v, ema, p.to(torch.bfloat16)


def get_inputs():
    grad = torch.randn(N, dtype=torch.bfloat16)
    return [torch.randn(N), grad, 0.1 * torch.randn(N), torch.rand(N), torch.randn(N)]


def get_init_inputs():
    return []
