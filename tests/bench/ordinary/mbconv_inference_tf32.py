"""Two MBConv blocks of EfficientNet in evaluation: expansion, depthwise 5 x 5, squeeze and excite, projection,
running statistics, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 64
CHANNELS = 80
SIZE = 28
EXPANSION = 6


class MBConv(nn.Module):
    def __init__(self, channels, expansion):
        super().__init__()
        wide = channels * expansion
        self.expand = nn.Conv2d(channels, wide, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(wide)
        self.depthwise = nn.Conv2d(wide, wide, 5, padding=2, groups=wide, bias=False)
        self.bn2 = nn.BatchNorm2d(wide)
        self.squeeze = nn.Conv2d(wide, channels // 4, 1)
        self.excite = nn.Conv2d(channels // 4, wide, 1)
        self.project = nn.Conv2d(wide, channels, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(channels)

    def forward(self, x):
        y = F.silu(self.bn1(self.expand(x)))
        y = F.silu(self.bn2(self.depthwise(y)))
        s = self.excite(F.silu(self.squeeze(F.adaptive_avg_pool2d(y, 1))))
        return x + self.bn3(self.project(y * torch.sigmoid(s)))


class Model(nn.Module):
    def __init__(self, channels, expansion):
        super().__init__()
        self.blocks = nn.Sequential(MBConv(channels, expansion), MBConv(channels, expansion))
        for m in self.modules():
            if isinstance(m, nn.BatchNorm2d):
                m.running_mean.normal_(0, 0.1)
                m.running_var.uniform_(0.5, 1.5)
                m.eval()

    def forward(self, x):
        return self.blocks(x)


def get_inputs():
    return [torch.randn(BATCH, CHANNELS, SIZE, SIZE)]


def get_init_inputs():
    return [CHANNELS, EXPANSION]
