"""TTT-Linear: a hidden state that is itself a linear model, learned by a gradient step over each small batch of tokens
through a norm, its outputs taken in dual form, bf16 in and out."""

import torch
import torch.nn as nn

BATCH = 2
HEADS = 4
CHUNKS = 8
CHUNK = 16
DIM = 64


class Model(nn.Module):
    def __init__(self, heads, dim):
        super().__init__()
        self.w = nn.Parameter(0.02 * torch.randn(heads, dim, dim))
        self.b = nn.Parameter(torch.zeros(heads, 1, dim))
        self.scale = nn.Parameter(torch.ones(heads, 1, dim))
        self.shift = nn.Parameter(torch.zeros(heads, 1, dim))

    def norm(self, z):
        mean, var = z.mean(-1, keepdim=True), z.var(-1, keepdim=True, unbiased=False)
        std = (var + 1e-6).sqrt()
        return (z - mean) / std, std

    def forward(self, q, k, v, rate):
        q, k, v, rate = q.float(), k.float(), v.float(), rate.float()
        w, b = self.w.expand(q.shape[0], -1, -1, -1), self.b.expand(q.shape[0], -1, -1, -1)
        d = q.shape[-1]
        outs = []
        for i in range(q.shape[2]):
            qi, ki, vi, eta = q[:, :, i], k[:, :, i], v[:, :, i], rate[:, :, i]
            hat, std = self.norm(ki @ w + b)
            error = (hat * self.scale + self.shift - (vi - ki)) * self.scale
            grad = (d * error - error.sum(-1, keepdim=True) - hat * (error * hat).sum(-1, keepdim=True)) / (d * std)
            attention = torch.tril(qi @ ki.transpose(-1, -2))
            lower = torch.tril(eta[..., None, :].expand(-1, -1, qi.shape[2], -1))
            bias = b - lower @ grad
            z = qi @ w - (lower * attention) @ grad + bias
            outs.append(qi + self.norm(z)[0] * self.scale + self.shift)
            w = w - (eta[..., None] * ki).transpose(-1, -2) @ grad
            b = b - (eta[..., None] * grad).sum(-2, keepdim=True)
        return torch.stack(outs, 2).to(torch.bfloat16)


def get_inputs():
    shape = (BATCH, HEADS, CHUNKS, CHUNK, DIM)
    return [torch.randn(shape, dtype=torch.bfloat16) for _ in range(3)] + [
        (0.05 * torch.rand(shape[:-1])).to(torch.bfloat16)
    ]


def get_init_inputs():
    return [HEADS, DIM]
