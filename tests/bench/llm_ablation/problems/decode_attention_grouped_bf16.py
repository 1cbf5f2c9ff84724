"""One decoding step of grouped-query attention over a long cache of keys and values."""

import torch
import torch.nn as nn
import torch.nn.functional as F


class Model(nn.Module):
    def forward(self, query, keys, values):
        return F.scaled_dot_product_attention(query, keys, values, enable_gqa=True)


def get_inputs():
    cache = (16, 8, 8192, 128)
    return [torch.randn(16, 32, 1, 128).bfloat16(), torch.randn(*cache).bfloat16(), torch.randn(*cache).bfloat16()]


def get_init_inputs():
    return []
