"""A sparse attention's indexer: rectified products of a few heads, weighed and summed, causal, and the scores of the
256 best keys, bf16."""

import torch
import torch.nn as nn

QUERIES = 1024
KEYS = 4096
HEADS = 16
DIM = 128
KEPT = 256


class Model(nn.Module):
    def __init__(self, kept):
        super().__init__()
        self.kept = kept

    def forward(self, q, k, weights):
        scores = torch.relu(torch.einsum("qhd,kd->hqk", q, k).float())
        scores = (scores * weights.float().t()[:, :, None]).sum(0)
        nq, nk = scores.shape
        later = torch.arange(nk, device=q.device)[None] > torch.arange(nq, device=q.device)[:, None] + (nk - nq)
        scores = scores.masked_fill(later, float("-inf"))
        best = scores.topk(self.kept, dim=-1).values
        return best, scores >= best[:, -1:]


def get_inputs():
    return [
        torch.randn(QUERIES, HEADS, DIM, dtype=torch.bfloat16),
        torch.randn(KEYS, DIM, dtype=torch.bfloat16),
        torch.randn(QUERIES, HEADS, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return [KEPT]
