"""Mamba-2's state space duality in chunks: segment sums, products within a chunk, states carried between chunks."""

import torch
import torch.nn as nn
import torch.nn.functional as F

B, L, H, P, N, C = 4, 2048, 16, 64, 64, 128


def segsum(x):
    t = x.size(-1)
    c = torch.cumsum(x, dim=-1)
    d = c[..., :, None] - c[..., None, :]
    keep = torch.tril(torch.ones(t, t, device=x.device, dtype=torch.bool))
    return d.masked_fill(~keep, float("-inf"))


class Model(nn.Module):
    def __init__(self, heads, chunk):
        super().__init__()
        self.chunk = chunk
        self.a_log = nn.Parameter(torch.log(torch.rand(heads) * 4 + 1))
        self.dt_bias = nn.Parameter(torch.rand(heads) - 3.0)
        self.d = nn.Parameter(torch.ones(heads))

    def forward(self, x, dt, bm, cm, z):
        b, length, h, p = x.shape
        c = self.chunk
        dt = F.softplus(dt.float() + self.dt_bias)
        da = (dt * -torch.exp(self.a_log)).view(b, length // c, c, h).permute(0, 3, 1, 2)
        xd = (x * dt.unsqueeze(-1).to(x.dtype)).view(b, length // c, c, h, p)
        bc, cc = bm.view(b, length // c, c, -1), cm.view(b, length // c, c, -1)
        total = torch.cumsum(da, -1)
        inside = torch.exp(segsum(da)).to(x.dtype)
        scores = torch.einsum("bcln,bcsn->bcls", cc, bc)
        diag = torch.einsum("bhcls,bcshp->bclhp", scores.unsqueeze(1) * inside, xd)
        decay = torch.exp(total[..., -1:] - total).to(x.dtype)
        states = torch.einsum("bcln,bhcl,bclhp->bchpn", bc, decay, xd)
        states = torch.cat((torch.zeros_like(states[:, :1]), states), dim=1)
        across = torch.exp(segsum(F.pad(total[..., -1], (1, 0)))).to(x.dtype)
        carried = torch.einsum("bhzc,bchpn->bzhpn", across, states)[:, :-1]
        off = torch.einsum("bcln,bchpn,bhcl->bclhp", cc, carried, torch.exp(total).to(x.dtype))
        y = (diag + off).reshape(b, length, h, p) + x * self.d.to(x.dtype)[:, None]
        return y * F.silu(z)


def get_inputs():
    half = torch.bfloat16
    return [
        torch.randn(B, L, H, P, dtype=half),
        torch.randn(B, L, H, dtype=half),
        torch.randn(B, L, N, dtype=half),
        torch.randn(B, L, N, dtype=half),
        torch.randn(B, L, H, P, dtype=half),
    ]


def get_init_inputs():
    return [H, C]
