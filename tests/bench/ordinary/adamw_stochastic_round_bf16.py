"""AdamW on bf16 parameters with stochastic rounding: moments in bf16, the step in fp32, sixteen given random bits added
below those that are kept, the norm of the update returned."""

import torch
import torch.nn as nn

SIZE = 33554432


class Model(nn.Module):
    def __init__(self):
        super().__init__()

    def rounded(self, x, bits):
        whole = x.view(torch.int32) + bits.to(torch.int32)
        return (whole & -65536).view(torch.float32).to(torch.bfloat16)

    def forward(self, p, grad, m, v, bits, scale):
        g = grad.float() * scale
        m32 = torch.lerp(m.float(), g, 0.1)
        v32 = torch.lerp(v.float(), g * g, 0.05)
        update = (m32 / 0.271) / ((v32 / 0.1426).sqrt() + 1e-8)
        new = p.float() * (1 - 3e-4 * 0.1) - 3e-4 * update
        norm = update.square().sum().sqrt()
        return self.rounded(new, bits), self.rounded(m32, bits), v32.to(torch.bfloat16), norm


def get_inputs():
    b = torch.bfloat16
    return [
        torch.randn(SIZE, dtype=b),
        torch.randn(SIZE, dtype=b),
        0.1 * torch.randn(SIZE, dtype=b),
        torch.rand(SIZE, dtype=b) + 0.01,
        torch.randint(0, 65536, (SIZE,), dtype=torch.int32),
        torch.tensor(0.7),
    ]


def get_init_inputs():
    return []
