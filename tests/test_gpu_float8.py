"""Eight-bit floats on a GPU: the header's conversions bit by bit, and CUDA kernels before the judge.

python -m pytest --noconftest tests/test_gpu_float8.py
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from support import generated_kernels as numbers
from support.compiler_reading import together
from support.eight_bit_numbers import FORMATS, floats, past

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.judge import LocalJudge, open_judge
from rag_kernels.eval.limits import Limits
from rag_kernels.eval.machine.device import gpu_name
from rag_kernels.eval.problem import problem_from_source
from rag_kernels.eval.records import Candidate, FunctionalProblem, Passed, Rejected, Wrong
from rag_kernels.eval.timing_rule import TimingRule
from rag_kernels.ingest.functional.functionalize import functionalize
from rag_kernels.ingest.functional.sizes import at_other_sizes

needs_gpu = pytest.mark.skipif(gpu_name() is None, reason="there is no GPU")
HEADERS = """#include <cuda_runtime.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include "rag_kernel.h"
"""
CONVERTS = (
    HEADERS
    + """
__global__ void narrow_all(const float* x, ELEMENT* out, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = rk::to_FORMAT(x[i]);
}
__global__ void widen_all(const ELEMENT* x, float* out, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = float(x[i]);
}
void narrow(rk::Tensor<const float> x, rk::Tensor<ELEMENT> out) {
  const int64_t n = x.numel();
  narrow_all<<<(n + 255) / 256, 256, 0, (cudaStream_t)rk::stream(out)>>>(x.data, out.data, n);
}
void widen(rk::Tensor<const ELEMENT> x, rk::Tensor<float> out) {
  const int64_t n = x.numel();
  widen_all<<<(n + 255) / 256, 256, 0, (cudaStream_t)rk::stream(out)>>>(x.data, out.data, n);
}
RK_EXPORT(narrow, narrow)
RK_EXPORT(widen, widen)
"""
)
QUANTISES = (
    HEADERS
    + """
__global__ void blocks_of(const __nv_bfloat16* x, __nv_fp8_e4m3* q, float* scales, int64_t count, int64_t size,
                          float least, float most) {
  const int64_t block = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) / 32, at = block * size;
  const int lane = threadIdx.x % 32;
  if (block >= count) return;
  float top = least;
  for (int64_t i = lane; i < size; i += 32) {
    const float a = fabsf(__bfloat162float(x[at + i]));
    top = top != top || a <= top ? top : a;
  }
  for (int step = 16; step; step /= 2) {
    const float other = __shfl_xor_sync(0xffffffffu, top, step);
    top = top != top || other <= top ? top : other;
  }
  const float scale = most / top;
  for (int64_t i = lane; i < size; i += 32) {
    const float v = __bfloat162float(x[at + i]) * scale;
    q[at + i] = rk::to_e4m3(v > most ? most : v < -most ? -most : v);
  }
  if (lane == 0) scales[block] = top / most;
}
void run(rk::Tensor<const __nv_bfloat16> x, int64_t, double least, double most, int64_t, int64_t, double,
         rk::Tensor<__nv_fp8_e4m3> q, rk::Tensor<float> scales) {
  const int64_t count = scales.numel();
  blocks_of<<<(count + 7) / 8, 256, 0, (cudaStream_t)rk::stream(q)>>>(x.data, q.data, scales.data, count,
                                                                      x.numel() / count, float(least), float(most));
}
RK_EXPORT(forward, run)
"""
)
DEQUANTISES = (
    HEADERS
    + """
__global__ void rows_of(const __nv_bfloat16* x, const __nv_bfloat16* scale, const __nv_fp8_e4m3* w, __nv_bfloat16* out,
                        int64_t terms, int64_t columns, int64_t count) {
  const int64_t at = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) / 32, row = at / columns, column = at % columns;
  if (at >= count) return;
  float sum = 0;
  for (int64_t k = threadIdx.x % 32; k < terms; k += 32) {
    const float weight = float(w[column * terms + k]) * __bfloat162float(scale[column]);
    sum += __bfloat162float(x[row * terms + k]) * __bfloat162float(__float2bfloat16(weight));
  }
  for (int step = 16; step; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  if (threadIdx.x % 32 == 0) out[at] = __float2bfloat16(sum);
}
void run(rk::Tensor<const __nv_bfloat16> x, rk::Tensor<const __nv_bfloat16> scale, rk::Tensor<const __nv_fp8_e4m3> w,
         rk::Tensor<__nv_bfloat16> out) {
  const int64_t count = out.numel();
  rows_of<<<(count + 7) / 8, 256, 0, (cudaStream_t)rk::stream(out)>>>(x.data, scale.data, w.data, out.data, w.size(1),
                                                                     w.size(0), count);
}
RK_EXPORT(forward, run)
"""
)
MODEL = """import torch
import torch.nn as nn
import torch.nn.functional as F

class Model(nn.Module):
{body}

def get_inputs():
    return [torch.randn({shape}, dtype=torch.bfloat16)]

def get_init_inputs():
    return []
"""
BLOCKS = """    def forward(self, x):
        blocks = x.view(1024, 32, 128).float()
        amax = blocks.abs().amax(-1, keepdim=True).clamp(min=1e-4)
        q = (blocks * (448.0 / amax)).clamp(-448, 448).to(torch.float8_e4m3fn)
        return q.view(1024, 4096), (amax / 448.0).squeeze(-1)"""
WEIGHTS = """    def __init__(self):
        super().__init__()
        self.register_buffer("w", (torch.randn(512, 1024) * 20).to(torch.float8_e4m3fn))
        self.scale = nn.Parameter((torch.rand(512, 1) / 20).bfloat16())

    def forward(self, x):
        return F.linear(x, self.w.to(torch.bfloat16) * self.scale)"""
PROBLEMS = {
    "blocks": (MODEL.format(body=BLOCKS, shape="1024, 4096"), QUANTISES),
    "weights": (MODEL.format(body=WEIGHTS, shape="64, 1024"), DEQUANTISES),
}
WRONG = {  # problem, what is replaced, and by what
    "cuts off": (
        "blocks",
        "rk::to_e4m3(v > most ? most : v < -most ? -most : v)",
        "rk::to_e4m3(__uint_as_float(__float_as_uint(v) & 0xfff00000))",
    ),
    "another range": ("blocks", "scale = most / top", "scale = 240.0f / top"),
    "stores e5m2": ("blocks", "q[at + i] = rk::to_e4m3", "q[at + i].__x = rk::to_e5m2"),
    "scale of a row before": ("weights", "scale[column]", "scale[column ? column - 1 : 0]"),
}


@needs_gpu
@pytest.mark.parametrize("dtype", FORMATS)
def test_conversions_are_pytorchs_on_a_gpu_too(tmp_path: Path, dtype: str) -> None:
    text = CONVERTS.replace("ELEMENT", f"__nv_fp8_{FORMATS[dtype]}").replace("FORMAT", FORMATS[dtype])
    [built] = build([(text, "cuda")], tools=toolchain(), cache=tmp_path)
    assert isinstance(built, Built), built
    module, kind, x = numbers.tvm_ffi.load_module(str(built.library)), getattr(torch, dtype), floats().cuda()
    got = torch.zeros(x.shape, dtype=kind, device="cuda")
    module.narrow(x, got)
    for where, theirs in (("GPU", x.to(kind).cpu()), ("CPU", x.cpu().to(kind))):
        mine = got.cpu()
        differs = (mine.view(torch.uint8) != theirs.view(torch.uint8)) & ~past(x.cpu(), dtype)
        differs &= ~(mine.float().isnan() & theirs.float().isnan())  # of either sign
        assert not differs.any(), (where, x.cpu()[differs][:5], mine[differs][:5], theirs[differs][:5])
    every = torch.arange(1 << 8).to(torch.uint8).view(kind).cuda()
    wide = torch.empty(1 << 8, device="cuda")
    module.widen(every, wide)
    assert torch.equal(wide.nan_to_num(1e9, 2e9, -2e9), every.float().nan_to_num(1e9, 2e9, -2e9))


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")
def test_cuda_kernels_of_eight_bits_are_built(tmp_path: Path) -> None:
    converts = CONVERTS.replace("ELEMENT", "__nv_fp8_e5m2").replace("FORMAT", "e5m2")
    [built] = build([(together([QUANTISES, DEQUANTISES, converts]), "cuda")], tools=toolchain(), cache=tmp_path)
    assert isinstance(built, Built), built.log


@pytest.fixture(scope="module")
def judge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalJudge]:
    limits, cache = Limits(timing=TimingRule(pairs=7, few_pairs=3)), tmp_path_factory.mktemp("cache")
    with open_judge("cuda", limits=limits, cache_dir=cache, at_other_sizes=at_other_sizes) as opened:
        yield opened


def functional(name: str, judge: LocalJudge) -> FunctionalProblem:
    return functionalize(problem_from_source(name, PROBLEMS[name][0]), workers=judge.workers)


@needs_gpu
@pytest.mark.parametrize("name", PROBLEMS)
def test_honest_cuda_kernels_are_confirmed(name: str, judge: LocalJudge) -> None:
    judged = judge.confirm(functional(name, judge), Candidate(PROBLEMS[name][1], "kernel", "cuda"))
    assert isinstance(judged.verdict, Passed) and judged.verdict.trust == "confirmed", judged.verdict


@needs_gpu
@pytest.mark.parametrize("name", WRONG)
def test_wrong_cuda_kernels_are_refused(name: str, judge: LocalJudge) -> None:
    problem, before, after = WRONG[name]
    source = PROBLEMS[problem][1].replace(before, after)
    if name == "stores e5m2":
        source = source.replace("-most : v);", "-most : v).__x;")
    assert source != PROBLEMS[problem][1]
    ((_, judged),) = judge.judge(functional(problem, judge), [Candidate(source, "kernel", "cuda")])
    assert isinstance(judged.verdict, Wrong | Rejected), judged.verdict
