"""Rotary position embedding of queries and keys, halves rotated, tables per position."""

import torch
import torch.nn as nn


class Model(nn.Module):
    def forward(self, queries, keys, cosine, sine):
        def rotated(x):
            first, second = x.chunk(2, dim=-1)
            return x * cosine + torch.cat((-second, first), dim=-1) * sine

        return rotated(queries), rotated(keys)


def get_inputs():
    queries = torch.randn(4, 32, 4096, 128).bfloat16()
    keys = torch.randn(4, 8, 4096, 128).bfloat16()
    return [queries, keys, torch.randn(4096, 128).bfloat16(), torch.randn(4096, 128).bfloat16()]


def get_init_inputs():
    return []
