"""EM's first half for a mixture of Gaussians: log-densities by Cholesky factors, responsibilities, the counts,
means and covariances of the next step, TF32 allowed."""

import math

import torch
import torch.nn as nn

POINTS = 65536
WIDTH = 16
PARTS = 32


class Model(nn.Module):
    def forward(self, x, mean, precision_chol, log_weight):
        d = x.shape[1]
        log_det = torch.log(torch.diagonal(precision_chol, dim1=1, dim2=2)).sum(-1)
        y = torch.einsum("nd,kde->nke", x, precision_chol) - torch.einsum("kd,kde->ke", mean, precision_chol)
        log_prob = -0.5 * (d * math.log(2 * math.pi) + y.pow(2).sum(-1)) + log_det
        weighted = log_prob + log_weight
        norm = torch.logsumexp(weighted, dim=1, keepdim=True)
        r = (weighted - norm).exp()
        count = r.sum(dim=0) + 1e-6
        new_mean = (r.t() @ x) / count[:, None]
        second = torch.einsum("nk,nd,ne->kde", r, x, x) / count[:, None, None]
        covariance = second - new_mean[:, :, None] * new_mean[:, None, :]
        return count, new_mean, covariance + 1e-6 * torch.eye(d, device=x.device), norm.mean()


def get_inputs():
    lower = torch.tril(0.1 * torch.randn(PARTS, WIDTH, WIDTH), diagonal=-1)
    chol = lower + torch.diag_embed(0.6 + 0.6 * torch.rand(PARTS, WIDTH))
    return [
        torch.randn(POINTS, WIDTH),
        torch.randn(PARTS, WIDTH),
        chol,
        torch.log_softmax(torch.randn(PARTS), dim=0),
    ]


def get_init_inputs():
    return []
