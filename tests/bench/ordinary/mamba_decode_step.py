"""One decode step of Mamba: the convolution's state moves on, SiLU, the scan's state, the gate."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, DIM, STATE, WIDTH = 128, 4096, 16, 4


class Model(nn.Module):
    def forward(self, x, z, conv_state, ssm_state, weight, bias, dt, dt_bias, a_log, b, c, d):
        conv_state = torch.cat([conv_state[..., 1:], x[..., None]], -1)
        x = (conv_state * weight).sum(-1) + bias
        x = F.silu(x)
        dt = F.softplus(dt + dt_bias)
        decay = torch.exp(dt[..., None] * -torch.exp(a_log))
        ssm_state = ssm_state * decay + (dt * x)[..., None] * b[:, None, :]
        y = (ssm_state * c[:, None, :]).sum(-1) + d * x
        return y * F.silu(z), conv_state, ssm_state


def get_inputs():
    x, z, dt = (torch.randn(BATCH, DIM) for _ in range(3))
    states = torch.randn(BATCH, DIM, WIDTH), torch.randn(BATCH, DIM, STATE)
    b, c = (torch.randn(BATCH, STATE) for _ in range(2))
    weight, bias, dt_bias, d = torch.randn(DIM, WIDTH), torch.randn(DIM), torch.randn(DIM), torch.randn(DIM)
    return [x, z, *states, weight, bias, dt, dt_bias, torch.log(1 + 15 * torch.rand(DIM, STATE)), b, c, d]


def get_init_inputs():
    return []
