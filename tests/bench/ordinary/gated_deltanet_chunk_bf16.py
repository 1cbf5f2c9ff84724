"""Gated DeltaNet by chunks of 64, as in Qwen3-Next: the triangular system in fp32, states carried from chunk to
chunk, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
SEQUENCE = 1024
HEADS = 16
KEY_DIM = 128
VALUE_DIM = 128
CHUNK = 64


class Model(nn.Module):
    def forward(self, q, k, v, g, beta):
        dtype = q.dtype
        q, k = F.normalize(q.float(), dim=-1), F.normalize(k.float(), dim=-1)
        q = q * q.shape[-1] ** -0.5
        b, t, h, dk = q.shape
        n = t // CHUNK

        def chunks(x):
            return x.float().transpose(1, 2).reshape(b, h, n, CHUNK, *x.shape[3:])

        q, k, v, g, beta = chunks(q), chunks(k), chunks(v), chunks(g), chunks(beta)
        g = g.cumsum(-1)
        upper = torch.triu(torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device), diagonal=1)
        decay = (g.unsqueeze(-1) - g.unsqueeze(-2)).masked_fill(upper, float("-inf")).exp()
        k_beta = k * beta.unsqueeze(-1)
        a = torch.tril(k_beta @ k.transpose(-1, -2) * decay, diagonal=-1)
        eye = torch.eye(CHUNK, device=q.device)
        v_new = torch.linalg.solve_triangular(eye + a, v * beta.unsqueeze(-1), upper=False, unitriangular=True)
        k_cum = torch.linalg.solve_triangular(eye + a, k_beta * g.exp().unsqueeze(-1), upper=False, unitriangular=True)
        state = q.new_zeros(b, h, dk, v.shape[-1])
        outputs = []
        for i in range(n):
            q_i, k_i, g_i = q[:, :, i], k[:, :, i], g[:, :, i]
            attn = q_i @ k_i.transpose(-1, -2) * decay[:, :, i]
            v_i = v_new[:, :, i] - k_cum[:, :, i] @ state
            outputs.append((q_i * g_i.exp().unsqueeze(-1)) @ state + attn @ v_i)
            last = g_i[..., -1:]
            state = state * last.exp().unsqueeze(-1) + (k_i * (last - g_i).exp().unsqueeze(-1)).transpose(-1, -2) @ v_i
        out = torch.stack(outputs, dim=2).reshape(b, h, t, -1).transpose(1, 2)
        return out.to(dtype), state


def get_inputs():
    shape = (BATCH, SEQUENCE, HEADS)
    q = torch.randn(*shape, KEY_DIM, dtype=torch.bfloat16)
    k = torch.randn(*shape, KEY_DIM, dtype=torch.bfloat16)
    v = torch.randn(*shape, VALUE_DIM, dtype=torch.bfloat16)
    g = F.logsigmoid(torch.randn(*shape) + 3.0)
    beta = torch.rand(*shape, dtype=torch.bfloat16)
    return [q, k, v, g, beta]


def get_init_inputs():
    return []
