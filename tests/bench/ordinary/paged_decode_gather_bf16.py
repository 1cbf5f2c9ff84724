"""Decoding over a paged cache: pages gathered by block tables, grouped queries, lengths masked."""

import torch
import torch.nn as nn

B, PAGES, PAGE, MAXP, HQ, HK, D = 16, 2048, 16, 64, 32, 8, 128


class Model(nn.Module):
    def __init__(self, hq, hk):
        super().__init__()
        self.rep = hq // hk

    def forward(self, q, kp, vp, table, lengths):
        b, hq, d = q.shape
        hk = kp.shape[2]
        k = kp[table].reshape(b, -1, hk, d)
        v = vp[table].reshape(b, -1, hk, d)
        qg = q.view(b, hk, self.rep, d)
        s = torch.einsum("bgrd,btgd->bgrt", qg.float(), k.float()) * d**-0.5
        t = torch.arange(k.shape[1], device=q.device)
        s = s.masked_fill((t[None, :] >= lengths[:, None])[:, None, None, :], float("-inf"))
        p = torch.softmax(s, -1)
        return torch.einsum("bgrt,btgd->bgrd", p, v.float()).reshape(b, hq, d).to(q.dtype)


def get_inputs():
    half = torch.bfloat16
    return [
        torch.randn(B, HQ, D, dtype=half),
        torch.randn(PAGES, PAGE, HK, D, dtype=half),
        torch.randn(PAGES, PAGE, HK, D, dtype=half),
        torch.randint(0, PAGES, (B, MAXP)),
        torch.randint(MAXP * PAGE // 2, MAXP * PAGE + 1, (B,)),
    ]


def get_init_inputs():
    return [HQ, HK]
