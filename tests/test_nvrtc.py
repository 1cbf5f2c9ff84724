"""Split CUDA sources: which texts are split, and that each part is built by its own compiler."""

from pathlib import Path

import pytest
from support.kept import kept_workers

from rag_kernels.eval.build.compile import Built, build, toolchain
from rag_kernels.eval.build.nvrtc import build_device, host_text, is_split, kernel_names

SPLIT = """#include "rag_kernel.h"
#if RK_DEVICE
extern "C" __global__ void __launch_bounds__(256) scale(const float* x, float* out, int64_t n, float f) {
  int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (i < n) out[i] = x[i] * f;
}
#endif
#if RK_HOST
void run(rk::Tensor<const float> x, double factor, rk::Tensor<float> out) {
  const int64_t n = x.numel();
  RK_LAUNCH(scale, dim3((n + 255) / 256), dim3(256), 0, out, x.data, out.data, n, float(factor));
}
RK_EXPORT(forward, run)
#endif
"""


def test_the_host_part_does_not_change_with_the_device_part() -> None:
    assert is_split(SPLIT) and not is_split("#include <cuda_runtime.h>\n__global__ void k() {}\n")
    assert kernel_names(SPLIT) == ["scale"]
    assert host_text(SPLIT) == host_text(SPLIT.replace("* f", "* f * 1.0f"))
    assert "threadIdx" not in host_text(SPLIT)


def test_the_host_part_is_built_by_the_cpp_compiler(tmp_path: Path) -> None:
    [built] = build([(host_text(SPLIT), "cuda-host")], tools=toolchain(), cache=tmp_path)
    assert isinstance(built, Built), built


@pytest.mark.skipif(toolchain().nvcc is None, reason="there is no nvcc here")
def test_nvcc_takes_both_parts_at_once(tmp_path: Path) -> None:
    [built] = build([(SPLIT, "cuda")], tools=toolchain(), cache=tmp_path)
    assert isinstance(built, Built), built


def test_the_device_part_is_built_by_nvrtc_or_said_to_have_none(tmp_path: Path) -> None:
    with kept_workers() as workers:
        made = build_device(SPLIT, arch="sm_90", workers=workers, cache=tmp_path)
    assert made is None or (isinstance(made, Path) and made.stat().st_size > 1000), made
