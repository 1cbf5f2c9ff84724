"""Mamba-3's chunk: trapezoidal discretisation (each step weighs its own input and the one before it), states rotated by
cumulated angles, decays within a chunk, states between chunks, bf16."""

import torch
import torch.nn as nn

BATCH = 2
CHUNKS = 16
CHUNK = 128
HEADS = 16
DIM = 64
STATE = 64


class Model(nn.Module):
    def __init__(self, heads):
        super().__init__()
        self.log_rate = nn.Parameter(torch.rand(heads))
        self.skip = nn.Parameter(torch.ones(heads))

    def rotate(self, x, angle):
        a, b = x.float().chunk(2, -1)
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((a * cos - b * sin, a * sin + b * cos), -1).to(x.dtype)

    def forward(self, x, k, q, step, share, angle):
        b, c, n, h, _ = x.shape
        step = nn.functional.softplus(step.float())
        turned = (angle.float() * step[..., None]).flatten(1, 2).cumsum(1).view(b, c, n, h, -1)
        k, q = self.rotate(k, turned), self.rotate(q, turned)
        log_decay = (-self.log_rate.exp() * step).permute(0, 1, 3, 2)
        total = log_decay.cumsum(-1)
        own = torch.sigmoid(share.float())
        weight = (own * step + (1 - own.roll(-1, 2)) * step.roll(-1, 2)).permute(0, 1, 3, 2)
        x_, k_, q_ = (y.permute(0, 1, 3, 2, 4) for y in (x, k, q))
        gap = total[..., :, None] - total[..., None, :]
        lower = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
        decay = torch.exp(gap.masked_fill(~lower, float("-inf")))
        scores = (q_ @ k_.transpose(-1, -2)).float() * decay * weight[..., None, :]
        inside = scores.to(x.dtype) @ x_
        left = (k_.float() * (weight * torch.exp(total[..., -1:] - total))[..., None]).to(x.dtype)
        made = (left.transpose(-1, -2) @ x_).float()
        state = torch.zeros_like(made[:, 0])
        before = []
        for i in range(c):
            before.append(state)
            state = state * torch.exp(total[:, i, :, -1])[..., None, None] + made[:, i]
        carried = (q_ @ torch.stack(before, 1).to(x.dtype)).float() * torch.exp(total)[..., None]
        y = inside.float() + carried + self.skip[:, None, None] * x_.float()
        return y.permute(0, 1, 3, 2, 4).to(x.dtype)


def get_inputs():
    shape = (BATCH, CHUNKS, CHUNK, HEADS)
    b = torch.bfloat16
    return [
        torch.randn(*shape, DIM, dtype=b),
        torch.randn(*shape, STATE, dtype=b),
        torch.randn(*shape, STATE, dtype=b),
        torch.randn(*shape, dtype=b) - 3,
        torch.randn(*shape, dtype=b),
        torch.randn(*shape, STATE // 2, dtype=b),
    ]


def get_init_inputs():
    return [HEADS]
