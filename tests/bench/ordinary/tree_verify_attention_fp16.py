"""Verification of a draft tree: 64 drafted tokens attend to the cache and to their own ancestors by a mask, fp16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 8
HEADS = 32
KV_HEADS = 8
HEAD_DIM = 128
CACHED = 3968
TREE = 64


class Model(nn.Module):
    def forward(self, q, k_cache, v_cache, k_new, v_new, parents, lengths):
        # ancestors by pointer doubling: who reaches whom
        b, n = parents.shape
        reach = torch.eye(n, dtype=torch.bool, device=q.device).expand(b, n, n)
        hop = parents
        for _ in range(6):
            above = torch.gather(reach, 1, hop.clamp(min=0).unsqueeze(-1).expand(-1, -1, n))
            reach = reach | (above & (hop >= 0).unsqueeze(-1))
            hop = torch.where(hop >= 0, torch.gather(hop, 1, hop.clamp(min=0)), hop)
        cached = torch.arange(k_cache.shape[2], device=q.device)[None, None, :] < lengths[:, None, None]
        mask = torch.cat([cached.expand(b, n, -1), reach], dim=-1).unsqueeze(1)
        k = torch.cat([k_cache, k_new], dim=2).repeat_interleave(q.shape[1] // k_new.shape[1], dim=1)
        v = torch.cat([v_cache, v_new], dim=2).repeat_interleave(q.shape[1] // v_new.shape[1], dim=1)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def get_inputs():
    def rand(heads, tokens):
        return torch.randn(BATCH, heads, tokens, HEAD_DIM, dtype=torch.float16)

    parents = torch.stack([torch.arange(TREE).sub(1).div(2, rounding_mode="floor") for _ in range(BATCH)])
    lengths = torch.randint(CACHED // 2, CACHED, (BATCH,))
    return [
        rand(HEADS, TREE),
        rand(KV_HEADS, CACHED),
        rand(KV_HEADS, CACHED),
        rand(KV_HEADS, TREE),
        rand(KV_HEADS, TREE),
        parents,
        lengths,
    ]


def get_init_inputs():
    return []
