"""xLSTM's matrix memory in its parallel form: exponential gates as a matrix of log decays, stabilised by the row's
maximum, bf16."""

import torch
import torch.nn as nn
import torch.nn.functional as F

BATCH = 2
HEADS = 8
STEPS = 1024
DIM = 128


class Model(nn.Module):
    def __init__(self, heads, dim):
        super().__init__()
        self.norm = nn.Parameter(torch.ones(heads, 1, dim))

    def forward(self, q, k, v, input_gate, forget_gate):
        steps, dim = q.shape[-2:]
        forget = F.logsigmoid(forget_gate.float()).cumsum(-1)
        decay = forget[..., :, None] - forget[..., None, :] + input_gate.float()[..., None, :]
        seen = torch.ones(steps, steps, dtype=torch.bool, device=q.device).tril()
        decay = decay.masked_fill(~seen, float("-inf"))
        top = decay.amax(-1, keepdim=True)
        scores = (q @ k.transpose(-1, -2)).float() * dim**-0.5 * torch.exp(decay - top)
        scale = torch.maximum(scores.sum(-1, keepdim=True).abs(), torch.exp(-top))
        h = ((scores / (scale + 1e-6)).to(v.dtype) @ v).float()
        h = (h - h.mean(-1, keepdim=True)) * torch.rsqrt(h.var(-1, keepdim=True, unbiased=False) + 1e-5)
        return (h * self.norm).to(v.dtype)


def get_inputs():
    return [
        *(torch.randn(BATCH, HEADS, STEPS, DIM, dtype=torch.bfloat16) for _ in range(3)),
        torch.randn(BATCH, HEADS, STEPS, dtype=torch.bfloat16),
        3 + torch.randn(BATCH, HEADS, STEPS, dtype=torch.bfloat16),
    ]


def get_init_inputs():
    return [HEADS, DIM]
