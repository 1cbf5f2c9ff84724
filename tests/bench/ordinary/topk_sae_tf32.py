"""A sparse autoencoder with the 64 largest of 16,384 features kept: reconstruction, explained variance, and which
features fired, TF32 allowed."""

import torch
import torch.nn as nn
import torch.nn.functional as F

TOKENS = 4096
WIDTH = 2048
FEATURES = 16384
KEPT = 64


class Model(nn.Module):
    def __init__(self, width, features):
        super().__init__()
        w = F.normalize(torch.randn(features, width), dim=1)
        self.encoder = nn.Parameter(w.clone())
        self.decoder = nn.Parameter(w.clone())
        self.bias = nn.Parameter(torch.zeros(features))
        self.mean = nn.Parameter(torch.randn(width) * 0.1)

    def forward(self, x):
        centred = x - self.mean
        pre = F.linear(centred, self.encoder, self.bias)
        values, indices = pre.topk(KEPT, dim=-1)
        acts = torch.zeros_like(pre).scatter(1, indices, F.relu(values))
        recon = acts @ self.decoder + self.mean
        error = (recon - x).pow(2).sum(dim=-1)
        variance = (x - x.mean(dim=0)).pow(2).sum(dim=-1)
        fired = (acts > 0).sum(dim=0)
        return recon, error.mean() / variance.mean(), fired


def get_inputs():
    return [torch.randn(TOKENS, WIDTH)]


def get_init_inputs():
    return [WIDTH, FEATURES]
