"""Mean and maximum over sequences of unequal lengths packed one after another, by offsets."""

import torch
from torch import nn

SEQUENCES, LENGTH, D = 1024, 64, 512


class Model(nn.Module):
    def forward(self, x, offsets):
        total = torch.cat([torch.zeros(1, D, device=x.device), x.cumsum(0)])
        lengths = (offsets[1:] - offsets[:-1]).clamp(min=1)
        mean = (total[offsets[1:]] - total[offsets[:-1]]) / lengths[:, None]
        segment = torch.bucketize(torch.arange(x.shape[0], device=x.device), offsets[1:], right=True)
        segment = segment.clamp(max=offsets.shape[0] - 2)
        low = torch.full((offsets.shape[0] - 1, D), -1e30, device=x.device)
        top = low.scatter_reduce(0, segment[:, None].expand(-1, D), x, "amax")
        return mean, top


def get_inputs():
    total = SEQUENCES * LENGTH
    cuts = torch.sort(torch.randint(0, total + 1, (SEQUENCES - 1,))).values
    offsets = torch.cat([torch.zeros(1, dtype=torch.long), cuts, torch.tensor([total])])
    return [torch.randn(total, D), offsets]


def get_init_inputs():
    return []
