"""Edge convolution of DGCNN: the 20 nearest in feature space, neighbour minus centre beside the centre, two shared
layers with folded batch norm, the maximum over neighbours, TF32 allowed."""

import torch
import torch.nn as nn

BATCH = 16
POINTS = 1024
WIDTH = 64
OUT = 128
NEAR = 20


class Model(nn.Module):
    def __init__(self, width, out, near):
        super().__init__()
        self.near = near
        self.mlp = nn.Sequential(
            nn.Conv2d(2 * width, out, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.LeakyReLU(0.2),
            nn.Conv2d(out, out, 1, bias=False),
            nn.BatchNorm2d(out),
            nn.LeakyReLU(0.2),
        ).eval()

    def forward(self, x):
        b, c, n = x.shape
        inner = -2 * torch.matmul(x.transpose(2, 1), x)
        xx = torch.sum(x**2, dim=1, keepdim=True)
        pairwise = -xx - inner - xx.transpose(2, 1)
        idx = pairwise.topk(k=self.near, dim=-1)[1]
        idx = (idx + torch.arange(b, device=x.device).view(-1, 1, 1) * n).view(-1)
        points = x.transpose(2, 1).contiguous()
        feature = points.view(b * n, -1)[idx, :].view(b, n, self.near, c)
        center = points.view(b, n, 1, c).repeat(1, 1, self.near, 1)
        feature = torch.cat((feature - center, center), dim=3).permute(0, 3, 1, 2).contiguous()
        return self.mlp(feature).max(dim=-1, keepdim=False)[0]


def get_inputs():
    return [torch.randn(BATCH, WIDTH, POINTS)]


def get_init_inputs():
    return [WIDTH, OUT, NEAR]
