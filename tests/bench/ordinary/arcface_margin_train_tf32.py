"""ArcFace over 20,000 identities: cosines, an angular margin at the label, scaled cross entropy, trained, TF32
allowed."""

import math

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 512
WIDTH = 512
CLASSES = 20000
SCALE = 64.0
MARGIN = 0.5


class Model(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(classes, width) * 0.01)

    def forward(self, x, labels):
        cosine = F.linear(F.normalize(x), F.normalize(self.weight)).clamp(-1 + 1e-6, 1 - 1e-6)
        sine = torch.sqrt(1 - cosine.pow(2))
        phi = cosine * math.cos(MARGIN) - sine * math.sin(MARGIN)
        phi = torch.where(cosine > math.cos(math.pi - MARGIN), phi, cosine - math.sin(math.pi - MARGIN) * MARGIN)
        one_hot = torch.zeros_like(cosine).scatter_(1, labels.view(-1, 1), 1.0)
        logits = SCALE * (one_hot * phi + (1 - one_hot) * cosine)
        return F.cross_entropy(logits, labels)


def get_inputs():
    return [torch.randn(BATCH, WIDTH), torch.randint(0, CLASSES, (BATCH,))]


def get_init_inputs():
    return [WIDTH, CLASSES]
