"""Eight-bit floats in the contract of kernels: the header's conversions against PyTorch's, bit by bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import generated_kernels as numbers
from support.eight_bit_numbers import FORMATS, floats, past

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.element_types import element_type
from rag_kernels.eval.numerics.compare import compare
from rag_kernels.eval.numerics.eight_bits import narrowed
from rag_kernels.eval.numerics.steps import rounded_as_owed

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
CONVERTS = """{include}
#include "rag_kernel.h"
void narrow(rk::Tensor<const float> x, rk::Tensor<{element}> out) {{
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = {rounding};
}}
void widen(rk::Tensor<const {element}> x, rk::Tensor<float> out) {{
  for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = float(x.data[i]);
}}
RK_EXPORT(narrow, narrow)
RK_EXPORT(widen, widen)
"""


def on_host(function: Any, *tensors: torch.Tensor) -> None:
    """Call a function that launches nothing; one of a CUDA source then asks for an error, and may find no driver."""
    try:
        function(*tensors)
    except RuntimeError as error:
        assert "CUDA driver" in str(error)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("rounding", ["assigned", "cpu", pytest.param("cuda", marks=needs_nvcc)])
def test_conversions_are_pytorchs_bit_by_bit(tmp_path: Path, dtype: str, rounding: str) -> None:
    backend = "cuda" if rounding == "cuda" else "cpu"
    text = CONVERTS.format(
        include="#include <cuda_runtime.h>\n#include <cuda_fp8.h>" if backend == "cuda" else "",
        element=element_type(dtype, backend),
        rounding="x.data[i]" if rounding == "assigned" else f"rk::to_{FORMATS[dtype]}(x.data[i])",
    )
    [built] = build([(text, backend)], tools=toolchain(), cache=tmp_path)
    assert isinstance(built, Built), built
    module = numbers.tvm_ffi.load_module(str(built.library))
    x, kind = floats(), getattr(torch, dtype)
    got = torch.zeros(x.shape, dtype=kind)
    on_host(module.narrow, x, got)
    differs = (got.view(torch.uint8) != x.to(kind).view(torch.uint8)) & ~past(x, dtype)
    assert not differs.any(), (x[differs][:5], got[differs][:5], x.to(kind)[differs][:5])
    every = torch.arange(1 << 8).to(torch.uint8).view(kind)
    wide = torch.empty(1 << 8)
    on_host(module.widen, every, wide)
    assert torch.equal(wide.nan_to_num(1e9, 2e9, -2e9), every.float().nan_to_num(1e9, 2e9, -2e9))
    assert torch.equal(wide.signbit() & ~wide.isnan(), every.float().signbit() & ~wide.isnan())
    with pytest.raises(TypeError, match="dtype"):
        module.widen(every.view(torch.uint8), wide)


@pytest.mark.parametrize("dtype", FORMATS)
def test_each_element_is_owed_but_where_rounding_decides(dtype: str) -> None:
    kind, generator = getattr(torch, dtype), torch.Generator().manual_seed(5)
    exact = torch.randn(64, 512, generator=generator, dtype=torch.float64)
    own = narrowed(exact, kind)
    again = [narrowed(exact * (1 + 1e-4 * torch.randn(exact.shape, generator=generator)), kind) for _ in range(8)]
    moved = narrowed(exact * (1 + 2e-5), kind)
    assert 0 < int((moved.float() != own.float()).sum()) < 64
    assert rounded_as_owed(own, own, exact, again) == ""
    assert rounded_as_owed(moved, own, exact, again) == ""
    assert "rounding on the way does not decide" in rounded_as_owed(moved, own, exact, [own] * 8)
    cut = (exact.float().view(torch.int32) & (-1 << (20 if kind == torch.float8_e4m3fn else 21))).view(torch.float32)
    told = rounded_as_owed(narrowed(cut, kind), own, exact, again)
    assert "of the elements are another number" in told and compare(own, own, exact).ok


def test_the_few_that_no_run_moves_are_off_by_little() -> None:
    """Of two hundred elements that rounding moved three more could be any number."""
    kind, generator = torch.float8_e4m3fn, torch.Generator().manual_seed(6)
    exact = torch.randn(256, 1024, generator=generator, dtype=torch.float64)
    own, moved = narrowed(exact, kind), narrowed(exact * (1 + 2e-5), kind)
    again = [narrowed(exact * (1 + 1e-4 * torch.randn(exact.shape, generator=generator)), kind) for _ in range(8)]
    assert int((moved.float() != own.float()).sum()) > 64 and rounded_as_owed(moved, own, exact, again) == ""
    for bits, right in ((1, True), (2, False), (0x80, False)):
        other = moved.clone()
        other[7, 9].view(torch.uint8).bitwise_xor_(bits)
        assert (rounded_as_owed(other, own, exact, again) == "") is right, bits


def test_past_the_range_of_e4m3_nan_will_do_where_torch_made_nan() -> None:
    """Torch before 2.13 made NaN of it, which a kernel may then, or the largest number; others are wrong."""
    kind = torch.float8_e4m3fn
    exact = torch.linspace(1, 448, 300, dtype=torch.float64)
    exact[7], exact[9] = 448, -448
    new = narrowed(exact, kind)
    old = new.clone()
    old.view(torch.uint8)[[7, 9]] = torch.tensor([0x7F, 0xFF], dtype=torch.uint8)
    for got, own, right in ((new, old, True), (old, old, True), (new, new, True), (old, new, False)):
        assert compare(got, own, exact).ok is right
    wrong = new.clone()
    wrong[7] = 240
    assert not compare(wrong, old, exact).ok


def test_what_is_infinite_in_e5m2_is_one_step_from_its_largest_number() -> None:
    exact = torch.full((300,), 3e4, dtype=torch.float64)
    exact[3] = 61440.0
    infinite, largest = exact.to(torch.float8_e5m2), narrowed(exact, torch.float8_e5m2)
    assert infinite.isinf().sum() == 1 and not largest.isinf().any()
    assert compare(largest, infinite, exact).ok and compare(infinite, infinite, exact).ok
    for right in (infinite.double(), exact):  # PyTorch makes of 61440 what is infinite
        assert rounded_as_owed(largest, infinite, right, [infinite] * 4)
        assert rounded_as_owed(largest, infinite, right, [infinite, largest] * 4) == ""  # rounding decides
    other = infinite.clone()
    other[3] = -float("inf")
    assert not compare(other, infinite, exact).ok
