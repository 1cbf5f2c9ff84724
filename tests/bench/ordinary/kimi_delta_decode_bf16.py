"""One token of Kimi Delta Attention: short convolutions over the cached inputs, unit keys, decay of each channel, the
delta rule on the state, gated RMS norm, bf16 with a state in fp32."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 64
HEADS = 32
KEY = 128
VALUE = 128
TAPS = 4


class Model(nn.Module):
    def __init__(self, heads, key, value, taps):
        super().__init__()
        bf = torch.bfloat16
        self.q_taps = nn.Parameter(0.5 * torch.randn(heads * key, taps, dtype=bf))
        self.k_taps = nn.Parameter(0.5 * torch.randn(heads * key, taps, dtype=bf))
        self.v_taps = nn.Parameter(0.5 * torch.randn(heads * value, taps, dtype=bf))
        self.a_log = nn.Parameter(torch.log(1 + 15 * torch.rand(heads)))
        self.dt_bias = nn.Parameter(torch.randn(heads, key))
        self.norm = nn.Parameter(torch.ones(value))
        self.heads = heads

    def conv(self, window, new, taps):
        window = torch.cat([window, new[..., None]], dim=-1)
        return F.silu((window * taps).sum(-1)), window[..., 1:]

    def forward(self, q, k, v, q_win, k_win, v_win, decay, beta, gate, state):
        q, q_win = self.conv(q_win, q, self.q_taps)
        k, k_win = self.conv(k_win, k, self.k_taps)
        v, v_win = self.conv(v_win, v, self.v_taps)
        q, k, v = (x.view(x.shape[0], self.heads, -1).float() for x in (q, k, v))
        q = F.normalize(q, dim=-1, eps=1e-6) * q.shape[-1] ** -0.5
        k = F.normalize(k, dim=-1, eps=1e-6)
        g = -self.a_log.exp()[:, None] * F.softplus(decay.float() + self.dt_bias)
        state = state * g.exp()[..., None]
        error = v - (k[..., None] * state).sum(-2)
        state = state + k[..., None] * (torch.sigmoid(beta.float())[..., None] * error)[..., None, :]
        out = (q[..., None] * state).sum(-2)
        out = out * torch.rsqrt(out.pow(2).mean(-1, keepdim=True) + 1e-5) * self.norm
        out = out * torch.sigmoid(gate.float())
        return out.to(torch.bfloat16).flatten(1), state, q_win, k_win, v_win


def get_inputs():
    bf = torch.bfloat16
    k, v = HEADS * KEY, HEADS * VALUE
    return [
        torch.randn(BATCH, k, dtype=bf),
        torch.randn(BATCH, k, dtype=bf),
        torch.randn(BATCH, v, dtype=bf),
        torch.randn(BATCH, k, TAPS - 1, dtype=bf),
        torch.randn(BATCH, k, TAPS - 1, dtype=bf),
        torch.randn(BATCH, v, TAPS - 1, dtype=bf),
        torch.randn(BATCH, HEADS, KEY, dtype=bf),
        torch.randn(BATCH, HEADS, dtype=bf),
        torch.randn(BATCH, HEADS, VALUE, dtype=bf),
        torch.randn(BATCH, HEADS, KEY, VALUE),
    ]


def get_init_inputs():
    return [HEADS, KEY, VALUE, TAPS]
