"""Gated linear attention by chunks: a decay for each channel of a key, a state carried from chunk to chunk, a norm of
each head and an output gate, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 4
HEADS = 8
CHUNKS = 16
CHUNK = 64
KEY = 64
VALUE = 128


class Model(nn.Module):
    def __init__(self, value):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(value, dtype=torch.bfloat16))

    def forward(self, q, k, v, g, gate):
        log = F.logsigmoid(g.float()) / 16
        total = log.cumsum(3)
        whole = total[:, :, :, -1:]
        qd = (q.float() * total.exp() * q.shape[-1] ** -0.5).to(q.dtype)
        kd = (k.float() * (-total).exp()).to(k.dtype)
        kept = (k.float() * (whole - total).exp()).to(k.dtype)
        inner = (qd @ kd.transpose(-1, -2)).tril()
        within = inner @ v
        adds = (kept.transpose(-1, -2) @ v).float()
        state = torch.zeros_like(adds[:, :, 0])
        across = []
        for i in range(q.shape[2]):
            across.append(qd[:, :, i] @ state.to(q.dtype))
            state = state * whole[:, :, i, 0].exp()[..., None] + adds[:, :, i]
        out = (within + torch.stack(across, 2)).float()
        out = out * torch.rsqrt(out.square().mean(-1, keepdim=True) + 1e-5)
        return (out.to(v.dtype) * self.norm * F.silu(gate)), state


def get_inputs():
    key = (BATCH, HEADS, CHUNKS, CHUNK, KEY)
    value = (BATCH, HEADS, CHUNKS, CHUNK, VALUE)
    b = torch.bfloat16
    return [torch.randn(s, dtype=b) for s in (key, key, value, key, value)]


def get_init_inputs():
    return [VALUE]
