"""DINOv3's Gram anchoring: patches of student and teacher normalised, their matrices of similarities compared, beside
a Kozachenko-Leonenko spread of class tokens, trained in bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
PATCHES = 196
WIDTH = 256


class Model(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.head = nn.Linear(width, width, bias=False, dtype=torch.bfloat16)

    def forward(self, student, teacher, cls):
        s = F.normalize(self.head(student).float(), dim=-1)
        t = F.normalize(teacher.float(), dim=-1)
        gram_s, gram_t = s @ s.transpose(1, 2), t @ t.transpose(1, 2)
        anchor = (gram_s - gram_t).square().mean()
        c = F.normalize(self.head(cls).float(), dim=-1)
        near = c @ c.t() - 2.0 * torch.eye(c.shape[0], device=c.device)
        apart = torch.sqrt((2.0 - 2.0 * near.amax(1)).clamp(min=1e-8))
        return anchor - 0.1 * torch.log(apart + 1e-8).mean()


def get_inputs():
    return [
        torch.randn(BATCH, PATCHES, WIDTH, dtype=torch.bfloat16),
        torch.randn(BATCH, PATCHES, WIDTH, dtype=torch.bfloat16),
        torch.randn(64, WIDTH, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return [WIDTH]
