"""DINO's head and loss: a bottleneck perceptron, normalised prototypes, a centred and sharpened teacher against all
crops of the student, trained, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 64
CROPS = 8
WIDTH = 768
HIDDEN = 2048
BOTTLENECK = 256
PROTOTYPES = 16384


class Model(nn.Module):
    def __init__(self, width, hidden, bottleneck, prototypes):
        super().__init__()
        self.mlp = nn.Sequential(
            nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, hidden), nn.GELU(), nn.Linear(hidden, bottleneck)
        )
        self.prototypes = nn.Parameter(torch.randn(prototypes, bottleneck) * 0.02)
        self.to(torch.bfloat16)
        self.register_buffer("center", torch.randn(1, prototypes) * 0.01)

    def forward(self, student, teacher_logits):
        z = F.normalize(self.mlp(student), dim=-1, eps=1e-6)
        logits = F.linear(z, F.normalize(self.prototypes, dim=-1)).float() / 0.1
        log_p = logits.log_softmax(dim=-1).view(CROPS, -1, logits.shape[-1])
        target = ((teacher_logits.float() - self.center) / 0.04).softmax(dim=-1).view(2, -1, logits.shape[-1])
        total = 0.0
        for t in range(2):
            for s in range(CROPS):
                if s != t:
                    total = total - (target[t] * log_p[s]).sum(dim=-1).mean()
        return total / (2 * CROPS - 2)


def get_inputs():
    return [
        torch.randn(CROPS * BATCH, WIDTH, dtype=torch.bfloat16),
        0.1 * torch.randn(2 * BATCH, PROTOTYPES, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return [WIDTH, HIDDEN, BOTTLENECK, PROTOTYPES]
