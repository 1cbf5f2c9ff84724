"""The hot loop of a kernel's assembly: the innermost one with the most work."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from rag_kernels.eval.build.compile import toolchain
from rag_kernels.eval.instruments.assembly import assembly, cuobjdump, hot_loop

TWO_LOOPS = """\
#include "rag_kernel.h"
void forward_kernel(rk::Tensor<const float> x, rk::Tensor<float> out) {
  const int64_t n = out.numel();
  for (int64_t i = 0; i < n; ++i) out.data[i] = 0;
  for (int64_t j = 0; j < 100; ++j)
    for (int64_t i = 0; i < n; ++i) out.data[i] += x.data[i] * x.data[i] / (1.0f + x.data[i]);
}
RK_EXPORT(forward, forward_kernel)
"""
LOOP_CU = """\
#include "rag_kernel.h"
__global__ void sums(const float* x, float* out, int64_t n) {
  float sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) sum += x[i] * x[i];
  atomicAdd(out, sum);
}
void run(rk::Tensor<const float> x, rk::Tensor<float> out) {
  RK_LAUNCH(sums, dim3(1), dim3(256), 0, out, x.data, out.data, x.numel());
}
RK_EXPORT(forward, run)
"""
SASS = """\
        Function : k
        /*0010*/                   MOV R1, c[0x0][0x28] ;
        /*0020*/                   IADD3 R2, R2, 0x1, RZ ;
        /*0030*/                   LDG.E R4, [R2.64] ;
        /*0040*/                   FFMA R5, R4, R4, R5 ;
        /*0050*/              @!P0 BRA 0x30 ;
        /*0060*/               @P1 BRA 0x20 ;
        /*0070*/                   EXIT ;
"""


@pytest.mark.skipif(shutil.which("objdump") is None, reason="binutils are not installed")
def test_the_loop_with_the_division_is_the_hot_one(tmp_path: Path) -> None:
    loop = hot_loop(assembly(TWO_LOOPS, "cpu", tmp_path))
    assert "vdivps" in loop or "divps" in loop or "vrcp" in loop
    assert 1 < loop.count("\n") < 80


def test_of_nested_loops_on_a_gpu_the_inner_one_is_hot() -> None:
    assert [line.split()[1] for line in hot_loop(SASS).splitlines()] == ["LDG.E", "FFMA", "@!P0"]


@pytest.mark.skipif(toolchain().nvcc is None or cuobjdump() is None, reason="there is no nvcc, or no cuobjdump")
def test_a_kernel_for_a_gpu_is_shown_in_sass_with_its_hot_loop(tmp_path: Path) -> None:
    listing = assembly(LOOP_CU, "cuda", tmp_path)
    assert "Function : " in listing and "sums" in listing and "EXIT" in listing
    loop = hot_loop(listing)
    assert "LDG" in loop and "FFMA" in loop and "BRA" in loop.splitlines()[-1]


def test_straight_code_has_none() -> None:
    assert hot_loop("0000 <f>:\n   0:\tret") == ""
