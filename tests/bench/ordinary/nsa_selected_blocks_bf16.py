"""Native sparse attention's selected branch for decoding: the best 16 blocks of 64 keys per key head, gathered and
attended, bf16."""

import torch
import torch.nn as nn

SEQUENCES = 16
CONTEXT = 8192
HEADS = 32
KV_HEADS = 2
HEAD_DIM = 128
BLOCK = 64
SELECTED = 16


class Model(nn.Module):
    def forward(self, q, k, v):
        s, kv, t, d = k.shape
        group = q.shape[1] // kv
        q = q.view(s, kv, group, d)
        compressed = k.view(s, kv, t // BLOCK, BLOCK, d).mean(dim=3)
        block_scores = torch.einsum("skgd,sknd->skgn", q, compressed).float() * d**-0.5
        importance = block_scores.softmax(dim=-1).sum(dim=2)
        importance[..., 0] += 10.0
        importance[..., -2:] += 10.0
        chosen = importance.topk(SELECTED, dim=-1).indices
        index = chosen[..., None, None].expand(-1, -1, -1, BLOCK, d)
        k_sel = k.view(s, kv, -1, BLOCK, d).gather(2, index).flatten(2, 3)
        v_sel = v.view(s, kv, -1, BLOCK, d).gather(2, index).flatten(2, 3)
        scores = (q @ k_sel.transpose(-1, -2)).float() * d**-0.5
        out = scores.softmax(dim=-1).to(v.dtype) @ v_sel
        return out.reshape(s, kv * group, d)


def get_inputs():
    q = torch.randn(SEQUENCES, HEADS, HEAD_DIM, dtype=torch.bfloat16)
    k = torch.randn(SEQUENCES, KV_HEADS, CONTEXT, HEAD_DIM, dtype=torch.bfloat16)
    v = torch.randn(SEQUENCES, KV_HEADS, CONTEXT, HEAD_DIM, dtype=torch.bfloat16)
    return [q, k, v]


def get_init_inputs():
    return []
