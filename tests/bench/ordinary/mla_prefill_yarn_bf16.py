"""DeepSeek MLA prefill: low-rank queries and keys with norms, one rotary key for all heads, causal, values narrower."""

import torch
import torch.nn as nn

B, S, D, H, NOPE, ROPE, VD, QR, KR = 1, 1024, 2048, 16, 128, 64, 128, 1024, 512


class Model(nn.Module):
    def __init__(self, d, h, nope, rope, vd, qr, kr):
        super().__init__()
        self.h, self.nope, self.rope, self.vd, self.kr = h, nope, rope, vd, kr
        self.qa, self.qb = nn.Linear(d, qr, bias=False), nn.Linear(qr, h * (nope + rope), bias=False)
        self.kva, self.kvb = nn.Linear(d, kr + rope, bias=False), nn.Linear(kr, h * (nope + vd), bias=False)
        self.qn, self.kn = nn.RMSNorm(qr, eps=1e-6), nn.RMSNorm(kr, eps=1e-6)
        self.o = nn.Linear(h * vd, d, bias=False)
        self.scale = (nope + rope) ** -0.5 * 1.2
        self.to(torch.bfloat16)

    def forward(self, x, freqs):
        b, s, _ = x.shape
        q = self.qb(self.qn(self.qa(x))).view(b, s, self.h, self.nope + self.rope)
        qn, qp = q.split((self.nope, self.rope), dim=-1)
        c, kp = self.kva(x).split((self.kr, self.rope), dim=-1)
        kn, v = self.kvb(self.kn(c)).view(b, s, self.h, self.nope + self.vd).split((self.nope, self.vd), dim=-1)
        cos, sin = freqs.cos()[None, :, None], freqs.sin()[None, :, None]

        def turn(t):
            a, z = t.float().unflatten(-1, (-1, 2)).unbind(-1)
            return torch.stack((a * cos - z * sin, a * sin + z * cos), -1).flatten(-2).type_as(t)

        qp, kp = turn(qp), turn(kp.unsqueeze(2)).expand(-1, -1, self.h, -1)
        q, k = torch.cat((qn, qp), -1).transpose(1, 2), torch.cat((kn, kp), -1).transpose(1, 2)
        scores = q @ k.transpose(-1, -2) * self.scale
        scores = scores + torch.full((s, s), float("-inf"), dtype=x.dtype, device=x.device).triu(1)
        p = torch.softmax(scores, dim=-1, dtype=torch.float32).type_as(x)
        return self.o((p @ v.transpose(1, 2)).transpose(1, 2).flatten(2))


def get_inputs():
    f = torch.outer(torch.arange(S).float(), 10000.0 ** (-torch.arange(0, ROPE, 2).float() / ROPE))
    return [torch.randn(B, S, D, dtype=torch.bfloat16), f]


def get_init_inputs():
    return [D, H, NOPE, ROPE, VD, QR, KR]
