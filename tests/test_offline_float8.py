"""Floats of eight bits, and bits of wider ones, in C++ and in emulated CUDA: casts bit by bit, scales, products."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.eight_bits import both, results, same_bits
from support.generated_kernels import Case, functional

ALL = "torch.arange(65536, dtype=torch.int32).to(torch.int16).view(torch.bfloat16)"
CASTS = {
    "to_eight_bits": Case(
        "return x.to(torch.float8_e4m3fn), x.to(torch.float8_e5m2), y.to(torch.float8_e4m3fn), y.to(torch.float8_e5m2)",
        f"{ALL}.view(256, 256)",
        f"{ALL}[:65535].float() * 1.01",
    ),
    "there_and_back": Case(
        "return x.to(torch.float8_e4m3fn).float(), y.to(torch.float8_e5m2).float(), "
        "x.to(torch.float8_e5m2).to(torch.float8_e4m3fn), y.to(torch.float8_e4m3fn).view(torch.uint8)",
        f"{ALL}.view(256, 256)",
        f"{ALL}[:65535].float() * 1.01",
    ),
    "from_eight_bits": Case(
        "return x.view(torch.float8_e4m3fn).float(), x.view(torch.float8_e5m2).to(torch.bfloat16), "
        "y.view(torch.float8_e4m3fn).to(torch.float16), y.view(torch.float8_e5m2) == 1.5",
        "torch.arange(256, dtype=torch.uint8).view(4, 64)",
        "torch.arange(255, dtype=torch.uint8)",
    ),
    "bits": Case(
        "i, h, m = x.view(torch.int32), y.view(torch.int16), x * 1.5; "
        "return ((i + 0x8000) & -65536).view(torch.float32), "
        "(i >> 23) & 255, m.view(torch.int32), (h ^ 1).view(torch.bfloat16), (h & 0x3FFF).view(torch.float16), "
        "(y * 3).view(torch.int16), x.half().view(torch.int16), torch.full_like(torch.empty_like(y), 2)",
        "torch.randn(8, 64)",
        "torch.randn(9, 33).to(torch.bfloat16)",
    ),
    "moved": Case(
        "return torch.cat([x, y], 1), torch.cat([x.t(), x.t()], 1), torch.where(x.float() > 0, x, y), "
        "y[:, ::2].to(torch.int32)",
        "torch.randn(32, 64).to(torch.float8_e4m3fn)",
        "torch.randn(32, 64).to(torch.float8_e4m3fn)",
    ),
}


@pytest.mark.parametrize("name", CASTS)
def test_casts_are_pytorchs_bit_by_bit(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All numbers of sixteen bits, infinities and NaN among them, by vectors and one by one."""
    fp = functional(name, CASTS[name])
    for text, call in both(fp, tmp_path, monkeypatch):
        pairs = results(fp, call)
        assert [i for i, (a, b) in enumerate(pairs) if not same_bits(a, b)] == [], text


# By name: what must stand in the CUDA text, and the problem.
SCALED = {
    "rows and blocks": (
        "narrowed<__nv_fp8_e4m3>(",
        Case(
            "u = x.view(-1, 3, 128).float(); m = u.abs().amax(-1, keepdim=True).clamp(min=1e-4); "
            "q = (u * (448.0 / m)).clamp(-448, 448).to(torch.float8_e4m3fn).view(-1, 384); "
            "s = y.float().abs().amax(-1, keepdim=True) / 448; "
            "return q, (m / 448.0).squeeze(-1), (y.float() / s).to(torch.float8_e4m3fn), s",
            "torch.randn(7, 384, dtype=torch.bfloat16)",
            "torch.randn(5, 200, dtype=torch.bfloat16)",
        ),
    ),
    "a scale for all": (
        "narrowed<__nv_fp8_e5m2>(",
        Case(
            "return (x / y).clamp(-57344, 57344).to(torch.float8_e5m2), (x * y).to(torch.float8_e4m3fn)",
            "torch.randn(9, 1040) * 300",
            "torch.rand(1) * 0.1",
        ),
    ),
    "dequantised": (
        "floats_of(",
        Case(
            "return (x.view(6, 2, 128).float() * y[..., None]).view(6, 256).to(torch.bfloat16), "
            "x.to(torch.float16) * y.mean(), x.view(torch.uint8) & 127",
            "torch.randn(6, 256).to(torch.float8_e4m3fn)",
            "torch.rand(6, 2)",
        ),
    ),
    "bytes alone": (
        "Pack<__nv_fp8_e4m3, 16>",
        Case(
            "return (x.float() * 0.5).to(torch.float8_e5m2), x.float().amax(-1).to(torch.float8_e4m3fn)",
            "torch.randn(6, 1024).to(torch.float8_e4m3fn)",
            "torch.rand(1)",
        ),
    ),
    "rows of an odd length": (
        "put_part_of(",
        Case(
            "u = x.float(); s = u.abs().amax(-1, keepdim=True) / 448; return (u / s).to(torch.float8_e4m3fn), s * y",
            "torch.randn(3, 2203).to(torch.float8_e5m2)",
            "torch.rand(1)",
        ),
    ),
    "an optimizer step": (
        "floats_of(",
        Case(
            "m = self.m.float() * 0.9 + 0.1 * x; v = self.v.float() * 0.99 + 0.01 * x * x; "
            "return y - 1e-3 * m / (v.sqrt() + 1e-8), m.to(torch.float8_e4m3fn), v.to(torch.float8_e5m2)",
            "torch.randn(9, 72)",
            "torch.randn(9, 72)",
            init="self.register_buffer('m', torch.randn(9, 72).to(torch.float8_e4m3fn)); "
            "self.register_buffer('v', torch.rand(9, 72).to(torch.float8_e5m2))",
        ),
    ),
    "a cache that grows": (
        "forward_",
        Case(
            "return torch.index_put(x, (self.at,), y.to(torch.float8_e4m3fn))",
            "torch.randn(16, 64).to(torch.float8_e4m3fn)",
            "torch.randn(3, 64, dtype=torch.bfloat16)",
            init="self.register_buffer('at', torch.tensor([3, 9, 11]))",
        ),
    ),
}


@pytest.mark.parametrize("name", SCALED)
def test_scales(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is quantised is PyTorch's bit by bit; what is computed in float32, within its last bits."""
    about, case = SCALED[name]
    fp = functional(name.replace(" ", "_"), case)
    for _, call in (made := both(fp, tmp_path, monkeypatch)):
        for a, b in results(fp, call):
            if a.dtype.itemsize == 1:
                assert same_bits(a, b)
            else:
                torch.testing.assert_close(a, b, rtol=2.0**-8 if a.dtype.itemsize == 2 else 1e-6, atol=1e-7)
    assert about in made[1][0]


WEIGHT = "torch.randn(96, 256).to(torch.float8_e4m3fn)"
PRODUCTS = {
    "few rows": (
        "_few",
        Case(
            "return F.linear(x, y.to(x.dtype)) * self.s, F.linear(x, y.to(x.dtype) * self.s[:, None])",
            "torch.randn(16, 256, dtype=torch.bfloat16)",
            WEIGHT,
            init="self.s = nn.Parameter(torch.rand(96, dtype=torch.bfloat16))",
        ),
    ),
    "scales of blocks": (
        "_few",
        Case(
            "w = (y.view(3, 32, 2, 128).float() * self.s[:, None, :, None]).view(96, 256); "
            "return F.linear(x, w.to(x.dtype))",
            "torch.randn(16, 256, dtype=torch.float16)",
            WEIGHT,
            init="self.s = nn.Parameter(torch.rand(3, 2))",
        ),
    ),
    "many rows": (
        "multiply_bfloat16",
        Case(
            "return F.linear(x, y.to(x.dtype) * self.s[:, None])",
            "torch.randn(72, 256, dtype=torch.bfloat16)",
            WEIGHT,
            init="self.s = nn.Parameter(torch.rand(96, dtype=torch.bfloat16))",
        ),
    ),
    "scaled": (
        "multiply_bfloat16",
        Case(
            "return torch._scaled_mm(x, y.t(), self.a, self.b, out_dtype=torch.bfloat16), "
            "torch._scaled_mm(x[:16], y.t(), self.one, self.one * 0.5, bias=self.c, out_dtype=torch.bfloat16)",
            "torch.randn(72, 256).to(torch.float8_e4m3fn)",
            WEIGHT,
            init="self.register_buffer('a', torch.rand(72, 1)); self.register_buffer('b', torch.rand(1, 96)); "
            "self.register_buffer('one', torch.tensor(2.0)); "
            "self.register_buffer('c', torch.randn(96, dtype=torch.bfloat16))",
        ),
    ),
    "of both formats": (
        "multiply_bfloat16",
        Case(
            "return x.float() @ y.float().t()",
            "torch.randn(72, 256).to(torch.float8_e5m2)",
            WEIGHT,
        ),
    ),
}


@pytest.mark.parametrize("name", PRODUCTS)
def test_products(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sixteen bits hold what eight do, so products are exact and sums those of float32."""
    about, case = PRODUCTS[name]
    fp = functional(name.replace(" ", "_"), case)
    for _, call in (made := both(fp, tmp_path, monkeypatch)):
        for a, b in results(fp, call):
            assert a.dtype == b.dtype
            apart = float((a.double() - b.double()).norm() / b.double().norm())
            assert apart < (2.0**-8 if a.dtype.itemsize == 2 else 1e-6)
    assert about in made[1][0]
