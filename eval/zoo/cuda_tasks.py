"""CUDA bodies for some of the zoo's problems, and `cuda`, which frames one as a kernel-tier source.

Comes in: nothing. Goes out: `CUDA_TASKS`, `cuda`. A task has a device kernel `work` and the line that launches it.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

from rag_kernels.eval.zoo.tasks import TASKS


@dataclass(frozen=True, slots=True)
class CudaTask:
    """`device` defines `work`; `launch` starts it on `queue`."""

    name: str
    device: str
    launch: str


ROWWISE = "work<<<unsigned(x.numel() / x.size(-1)), 128, 0, queue>>>(x.data, out.data, int(x.size(-1)));"
FLAT = "work<<<unsigned((x.numel() + 255) / 256), 256, 0, queue>>>(x.data, out.data, x.numel());"
REDUCE = """
__device__ float reduced(float v, float* shared, bool largest) {
  shared[threadIdx.x] = v;
  __syncthreads();
  for (int step = 64; step > 0; step /= 2) {
    if (threadIdx.x < step) {
      const float other = shared[threadIdx.x + step], mine = shared[threadIdx.x];
      shared[threadIdx.x] = largest ? fmaxf(mine, other) : mine + other;
    }
    __syncthreads();
  }
  const float result = shared[0];
  __syncthreads();
  return result;
}
"""

CUDA_TASKS = {
    task.name: task
    for task in (
        CudaTask(
            "gelu",
            """
__global__ void work(const float* x, float* out, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = 0.5f * x[i] * erfcf(-x[i] * 0.70710678f);
}
""",
            FLAT,
        ),
        CudaTask(
            "hardtanh",
            """
__global__ void work(const float* x, float* out, int64_t n) {
  const int64_t i = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (i < n) out[i] = fminf(fmaxf(x[i], -1.5f), 1.5f);
}
""",
            FLAT,
        ),
        CudaTask(
            "softmax",
            REDUCE
            + """
__global__ void work(const float* x, float* out, int n) {
  __shared__ float shared[128];
  x += int64_t(blockIdx.x) * n;
  out += int64_t(blockIdx.x) * n;
  float top = -INFINITY, total = 0;
  for (int i = threadIdx.x; i < n; i += 128) top = fmaxf(top, x[i]);
  top = reduced(top, shared, true);
  for (int i = threadIdx.x; i < n; i += 128) total += expf(x[i] - top);
  total = reduced(total, shared, false);
  for (int i = threadIdx.x; i < n; i += 128) out[i] = expf(x[i] - top) / total;
}
""",
            ROWWISE,
        ),
        CudaTask(
            "rowsum",
            REDUCE
            + """
__global__ void work(const float* x, float* out, int n) {
  __shared__ float shared[128];
  x += int64_t(blockIdx.x) * n;
  float total = 0;
  for (int i = threadIdx.x; i < n; i += 128) total += x[i];
  total = reduced(total, shared, false);
  if (threadIdx.x == 0) out[blockIdx.x] = total;
}
""",
            ROWWISE,
        ),
        CudaTask(
            "matmul",
            """
__global__ void work(const float* x, const float* y, float* out, int rows, int inner, int n) {
  const int r = blockIdx.y * 16 + threadIdx.y, c = blockIdx.x * 16 + threadIdx.x;
  if (r >= rows || c >= n) return;
  float total = 0;
  for (int k = 0; k < inner; ++k) total += x[r * inner + k] * y[k * n + c];
  out[r * n + c] = total;
}
""",
            """\
const int rows = x.size(0), inner = x.size(1), n = y.size(1);
work<<<dim3((n + 15) / 16, (rows + 15) / 16), dim3(16, 16), 0, queue>>>(x.data, y.data, out.data, rows, inner, n);""",
        ),
    )
}

HEAD = """\
#include <cuda_runtime.h>
#include <cmath>
#include <vector>
#include "rag_kernel.h"
typedef rk::Tensor<const float> In;
typedef rk::Tensor<float> Out;
"""


def cuda(
    task: str, *, top: str = "", device: str | None = None, before: str = "", launch: str | None = None, after: str = ""
) -> str:
    """Return a CUDA source of the task.

    `device` replaces the kernel, `launch` the launch, the rest goes around them.
    """
    known, signature = CUDA_TASKS[task], TASKS[task].signature
    inner = ["cudaStream_t queue = (cudaStream_t)rk::stream(out);\n(void)queue;", before, launch or known.launch, after]
    steps = "\n".join(indent(dedent(part).strip(), "  ") for part in inner if part.strip())
    return (
        f"{HEAD}{dedent(device or known.device)}{dedent(top)}"
        f"void entry({signature}) {{\n{steps}\n}}\nRK_EXPORT(forward, entry)\n"
    )
