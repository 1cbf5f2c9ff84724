"""Training augmentation on the device: a random affine crop, brightness, contrast, saturation and hue by image,
normalised, from uint8."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 64
HEIGHT = 256
CROP = 224


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(3, 1, 1))

    def forward(self, images, theta, jitter, flip):
        x = images.permute(0, 3, 1, 2).float() / 255
        theta = torch.cat([torch.where(flip[:, None, None], -theta[:, :, :1], theta[:, :, :1]), theta[:, :, 1:]], dim=2)
        grid = F.affine_grid(theta, (x.shape[0], 3, CROP, CROP), align_corners=False)
        x = F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=False)
        brightness, contrast, saturation, hue = (j.view(-1, 1, 1, 1) for j in jitter.unbind(1))
        x = (x * brightness).clamp(0, 1)
        gray = 0.2989 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]
        x = (contrast * x + (1 - contrast) * gray.mean(dim=(1, 2, 3), keepdim=True)).clamp(0, 1)
        gray = 0.2989 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]
        x = (saturation * x + (1 - saturation) * gray).clamp(0, 1)
        top, low = x.amax(dim=1), x.amin(dim=1)
        delta = top - low
        r, g, b = x.unbind(1)
        safe = torch.where(delta == 0, torch.ones_like(delta), delta)
        h = torch.where(top == r, (g - b) / safe, torch.where(top == g, 2 + (b - r) / safe, 4 + (r - g) / safe)) / 6
        h = (h + hue.view(-1, 1, 1)) % 1.0
        s = delta / torch.where(top == 0, torch.ones_like(top), top)
        k = (torch.tensor([5.0, 3.0, 1.0], device=x.device).view(1, 3, 1, 1) + h.unsqueeze(1) * 6) % 6
        x = top.unsqueeze(1) * (1 - s.unsqueeze(1) * torch.minimum(k, 4 - k).clamp(0, 1))
        return (x - self.mean) / self.std


def get_inputs():
    images = torch.randint(0, 256, (BATCH, HEIGHT, HEIGHT, 3), dtype=torch.uint8)
    theta = torch.tensor([[0.8, 0.0, 0.0], [0.0, 0.8, 0.0]]) + 0.1 * torch.randn(BATCH, 2, 3)
    jitter = torch.rand(BATCH, 4) * torch.tensor([0.8, 0.8, 0.8, 0.2]) + torch.tensor([0.6, 0.6, 0.6, -0.1])
    return [images, theta, jitter, torch.rand(BATCH) < 0.5]


def get_init_inputs():
    return []
