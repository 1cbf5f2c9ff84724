"""Preprocessing: bytes NHWC to floats NCHW, bilinear resize, mean and std of ImageNet, fp16."""

import torch
import torch.nn.functional as F
from torch import nn

BATCH, HEIGHT, WIDTH, OUT = 32, 480, 640, 224


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))

    def forward(self, image):
        x = image.permute(0, 3, 1, 2).float() / 255.0
        x = F.interpolate(x, size=(OUT, OUT), mode="bilinear", align_corners=False)
        return ((x - self.mean) / self.std).half()


def get_inputs():
    return [torch.randint(0, 256, (BATCH, HEIGHT, WIDTH, 3), dtype=torch.uint8)]


def get_init_inputs():
    return []
