"""Layer norm of ragged sequences kept in one tensor: mean and variance by segment, from offsets."""

import torch
from torch import nn


class Model(nn.Module):
    def forward(self, values, lengths):
        b = lengths.shape[0]
        seg = torch.repeat_interleave(torch.arange(b, device=values.device), lengths, output_size=values.shape[0])
        n = lengths.float()[:, None] * values.shape[1]
        s = torch.zeros(b, values.shape[1], device=values.device).index_add(0, seg, values).sum(1, keepdim=True) / n
        d = values - s[seg]
        v = torch.zeros(b, values.shape[1], device=values.device).index_add(0, seg, d * d).sum(1, keepdim=True) / n
        return d * torch.rsqrt(v[seg] + 1e-5)


def get_inputs():
    return [torch.randn(64 * 64, 96), torch.full((64,), 64)]


def get_init_inputs():
    return []
