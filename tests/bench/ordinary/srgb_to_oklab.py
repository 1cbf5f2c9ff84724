"""sRGB pictures of bytes to OKLab: linear light, cone response, cube roots; mean chroma of each picture."""

import torch
from torch import nn

BATCH, HEIGHT, WIDTH = 8, 768, 1024


class Model(nn.Module):
    def forward(self, picture):
        x = picture.float() / 255.0
        x = torch.where(x <= 0.04045, x / 12.92, ((x + 0.055) / 1.055).pow(2.4))
        r, g, b = x.unbind(-1)
        long = (0.4122214708 * r + 0.5363325363 * g + 0.0514459929 * b).pow(1 / 3)
        m = (0.2119034982 * r + 0.6806995451 * g + 0.1073969566 * b).pow(1 / 3)
        s = (0.0883024619 * r + 0.2817188376 * g + 0.6299787005 * b).pow(1 / 3)
        light = 0.2104542553 * long + 0.7936177850 * m - 0.0040720468 * s
        a = 1.9779984951 * long - 2.4285922050 * m + 0.4505937099 * s
        c = 0.0259040371 * long + 0.7827717662 * m - 0.8086757660 * s
        return torch.stack([light, a, c], 1), (a * a + c * c).sqrt().mean((1, 2))


def get_inputs():
    return [torch.randint(0, 256, (BATCH, HEIGHT, WIDTH, 3), dtype=torch.uint8)]


def get_init_inputs():
    return []
