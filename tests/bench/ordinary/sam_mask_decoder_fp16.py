"""A mask decoder's head: two transposed convolutions with a norm over channels, MLPs of the mask tokens, masks as
products, fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
WIDTH = 256
SIDE = 64
MASKS = 4


class Model(nn.Module):
    def __init__(self, width, masks):
        super().__init__()
        h = torch.float16
        self.up1 = nn.ConvTranspose2d(width, width // 4, 2, stride=2, dtype=h)
        self.w = nn.Parameter(torch.ones(width // 4, dtype=h))
        self.b = nn.Parameter(torch.zeros(width // 4, dtype=h))
        self.up2 = nn.ConvTranspose2d(width // 4, width // 8, 2, stride=2, dtype=h)
        self.m1 = nn.Parameter(0.06 * torch.randn(masks, width, width, dtype=h))
        self.m2 = nn.Parameter(0.06 * torch.randn(masks, width, width // 8, dtype=h))

    def forward(self, image, tokens, skip):
        x = self.up1(image) + skip
        u = x.mean(1, keepdim=True)
        s = (x - u).pow(2).mean(1, keepdim=True)
        x = (x - u) / torch.sqrt(s + 1e-6)
        x = F.gelu(self.w[:, None, None] * x + self.b[:, None, None])
        x = F.gelu(self.up2(x))
        hyper = F.relu(torch.einsum("bmc,mcd->bmd", tokens, self.m1))
        hyper = torch.einsum("bmc,mcd->bmd", hyper, self.m2)
        b, c, h, w = x.shape
        masks = (hyper @ x.view(b, c, h * w)).view(b, -1, h, w)
        return masks, (masks > 0).float().mean(dim=(2, 3))


def get_inputs():
    return [
        torch.randn(BATCH, WIDTH, SIDE, SIDE, dtype=torch.float16),
        torch.randn(BATCH, MASKS, WIDTH, dtype=torch.float16),
        torch.randn(BATCH, WIDTH // 4, 2 * SIDE, 2 * SIDE, dtype=torch.float16),
    ]


def get_init_inputs():
    return [WIDTH, MASKS]
