"""Cross attention of a decoder over memories of unequal lengths, with an output projection and residual."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, Q, K, D, H = 16, 128, 1500, 1024, 16


class Model(nn.Module):
    def __init__(self, d, h):
        super().__init__()
        self.h = h
        self.q, self.kv, self.o = nn.Linear(d, d), nn.Linear(d, 2 * d, bias=False), nn.Linear(d, d)
        self.norm = nn.LayerNorm(d)
        self.to(torch.bfloat16)

    def forward(self, x, memory, lengths):
        b, n, d = x.shape
        m = memory.shape[1]
        q = self.q(self.norm(x)).view(b, n, self.h, -1).transpose(1, 2)
        k, v = self.kv(memory).view(b, m, 2, self.h, -1).permute(2, 0, 3, 1, 4)
        keep = torch.arange(m, device=x.device)[None, :] < lengths[:, None]
        a = F.scaled_dot_product_attention(q, k, v, attn_mask=keep[:, None, None, :])
        return x + self.o(a.transpose(1, 2).reshape(b, n, d))


def get_inputs():
    half = torch.bfloat16
    return [torch.randn(B, Q, D, dtype=half), torch.randn(B, K, D, dtype=half), torch.randint(K // 4, K + 1, (B,))]


def get_init_inputs():
    return [D, H]
