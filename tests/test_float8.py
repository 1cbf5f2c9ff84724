"""Eight-bit floats in the contract of kernels: the header's conversions against PyTorch's, bit by bit."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from support import generated_kernels as numbers

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.element_types import element_type

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
FORMATS = {"float8_e4m3fn": "e4m3", "float8_e5m2": "e5m2"}
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


def floats() -> torch.Tensor:
    """All numbers of sixteen bits, a million patterns of 32, and what lies at and beside the middle of two of eight."""
    every = torch.arange(1 << 16, dtype=torch.int32).to(torch.int16)
    drawn = torch.randint(-(1 << 31), 1 << 31, (1 << 20,), generator=torch.Generator().manual_seed(3)).to(torch.int32)
    middles = [torch.empty(0)]
    for dtype in FORMATS:
        steps = torch.arange(1 << 7, dtype=torch.uint8).view(getattr(torch, dtype)).float()
        middles.append((steps[1:] + steps[:-1]) / 2)
    at = torch.cat(middles).view(torch.int32)
    beside = torch.cat([at, at + 1, at - 1, at ^ -(1 << 31)])
    return torch.cat([every.view(torch.float16).float(), every.view(torch.bfloat16).float(), drawn.view(torch.float32),
                      beside.view(torch.float32)])  # fmt: skip


def past(x: torch.Tensor, dtype: str) -> torch.Tensor:
    """Where PyTorch before 2.13 makes NaN of a number past the range of e4m3, which it makes 448 of since."""
    older = torch.tensor(1e6).to(getattr(torch, dtype)).isnan()
    return (x.abs() > 464) if older and dtype == "float8_e4m3fn" else torch.zeros_like(x, dtype=torch.bool)


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
