"""Two images blended by a mask over four levels of a Laplacian pyramid: Gaussian reductions and expansions, the levels
mixed, the sum built up, fp32."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
SIZE = 1024
LEVELS = 4


class Model(nn.Module):
    def __init__(self, levels):
        super().__init__()
        self.levels = levels
        k = torch.tensor([1.0, 4.0, 6.0, 4.0, 1.0]) / 16
        self.register_buffer("kernel", torch.outer(k, k)[None, None])

    def blur(self, x):
        c = x.shape[1]
        return F.conv2d(F.pad(x, (2, 2, 2, 2), mode="reflect"), self.kernel.expand(c, 1, 5, 5), groups=c)

    def down(self, x):
        return self.blur(x)[:, :, ::2, ::2]

    def up(self, x):
        return F.interpolate(x, scale_factor=2, mode="bilinear", align_corners=False)

    def pyramid(self, x):
        levels = []
        for _ in range(self.levels):
            small = self.down(x)
            levels.append(x - self.up(small))
            x = small
        return [*levels, x]

    def forward(self, a, b, mask):
        pa, pb = self.pyramid(a), self.pyramid(b)
        masks = [mask]
        for _ in range(self.levels):
            masks.append(self.down(masks[-1]))
        mixed = [m * x + (1 - m) * y for m, x, y in zip(masks, pa, pb, strict=True)]
        out = mixed[-1]
        for level in reversed(mixed[:-1]):
            out = self.up(out) + level
        return out.clamp(0, 1)


def get_inputs():
    return [torch.rand(BATCH, 3, SIZE, SIZE), torch.rand(BATCH, 3, SIZE, SIZE), torch.rand(BATCH, 1, SIZE, SIZE)]


def get_init_inputs():
    return [LEVELS]
