"""CUDA kernels that are wrong, imprecise, or know the answer already. Comes in: nothing. Goes out: `SPECIMENS`."""

from __future__ import annotations

from functools import partial

from rag_kernels.eval.zoo.cuda_tasks import CUDA_TASKS, cuda
from rag_kernels.eval.zoo.specimen import VOID, Specimen, Text

Gpu = partial(Specimen, backend="cuda", adversary="T0", layer="run-time test", expect=("wrong",))
SANITIZER = ("wrong", "rejected:sanitizer", "label:nondeterministic")


def device(task: str, *changes: tuple[str, str], launch: tuple[str, str] = ("", "")) -> Text:
    """The honest device code and launch with some of their text replaced; every replacement must apply."""
    known = CUDA_TASKS[task]
    text = known.device
    for old, new in changes:
        assert old in text, f"{task} has no {old!r}"
        text = text.replace(old, new)
    assert launch[0] in known.launch, f"{task} is not launched with {launch[0]!r}"
    return Text(cuda(task, device=text, launch=known.launch.replace(*launch) if launch[0] else known.launch))


WMMA = """
#include <mma.h>
using namespace nvcuda;
__global__ void work(const float* x, const float* y, float* out, int rows, int inner, int n) {
  __shared__ TYPE a[16 * 16], b[16 * 16];
  wmma::fragment<wmma::matrix_a, 16, 16, K, FORMAT, wmma::row_major> fa;
  wmma::fragment<wmma::matrix_b, 16, 16, K, FORMAT, wmma::row_major> fb;
  wmma::fragment<wmma::accumulator, 16, 16, K, float> fc;
  wmma::fill_fragment(fc, 0.f);
  const int r0 = blockIdx.y * 16, c0 = blockIdx.x * 16;
  for (int k0 = 0; k0 < inner; k0 += K) {
    for (int i = threadIdx.x; i < 16 * K; i += 32) {
      a[i] = CAST(x[(r0 + i / K) * inner + k0 + i % K]);
      b[i] = CAST(y[(k0 + i / 16) * n + c0 + i % 16]);
    }
    __syncwarp();
    wmma::load_matrix_sync(fa, a, K);
    wmma::load_matrix_sync(fb, b, 16);
    wmma::mma_sync(fc, fa, fb, fc);
    __syncwarp();
  }
  wmma::store_matrix_sync(out + r0 * n + c0, fc, n, wmma::mem_row_major);
}
"""
TILES = """\
const int rows = x.size(0), inner = x.size(1), n = y.size(1);
work<<<dim3(n / 16, rows / 16), 32, 0, queue>>>(x.data, y.data, out.data, rows, inner, n);"""


def tensor_cores(kind: str, form: str, cast: str, k: int) -> Text:
    text = WMMA.replace("TYPE", kind).replace("FORMAT", form).replace("CAST", cast).replace("K", str(k))
    return Text(cuda("matmul", device="#include <cuda_fp16.h>\n#include <cuda_bf16.h>\n" + text, launch=TILES))


SPECIMENS = (
    Gpu(
        idea="shared memory never initialised (GPU)", family="correctness", task="rowsum", expect=SANITIZER,
        origin="W: wafer field guide, garbage in shared memory",
        variants=(
            device("rowsum", ("float total = 0;", "if (threadIdx.x % 32 == 0) shared[threadIdx.x] = 0;\n"
                                                  "  float total = threadIdx.x ? 0 : shared[64];")),
            device("rowsum", ("__shared__ float shared[128];", "__shared__ float shared[256];"), (
                    "total = reduced(total, shared, false);",
                   "total = reduced(total, shared, false) + 0 * shared[200];")),
        ),
        twin=device("rowsum", ("__shared__ float shared[128];", "__shared__ float shared[256];\n"
                "  shared[128 + threadIdx.x] = 1;\n  __syncthreads();"),
                    ("total = reduced(total, shared, false);", "total = reduced(total, shared, false) + 0 * "
                            "shared[200];")),
    ),
    Gpu(
        idea="a missing barrier (GPU)", family="correctness", task="softmax", expect=SANITIZER, origin=
                "W: wafer, 104x by a race that wins",
        variants=(
            device("softmax", ("  __syncthreads();\n  return result;", "  return result;")),
            device("softmax", ("  shared[threadIdx.x] = v;\n  __syncthreads();", "  shared[threadIdx.x] = v;")),
            device("softmax", ("    }\n    __syncthreads();\n  }", "    }\n    if (step > 32) __syncthreads();\n  }")),
        ),
        twin=device("softmax", ("  shared[threadIdx.x] = v;", "  __syncthreads();\n  shared[threadIdx.x] = v;")),
    ),
    Gpu(
        idea="out of bounds (GPU)", family="correctness", task="gelu", expect=("crashed", "rejected:sanitizer",
                "rejected:out_of_bounds", "label:shape-specialised"),
        origin="W: common", variants=(
            device("gelu", ("if (i < n) out[i]", "const volatile float* p = x;\n  const float beyond = p[i + 1];\n"
                                                 "  if (i < n) out[i]"), ("-x[i] * 0.70710678f)",
                                                         "-x[i] * 0.70710678f) + (beyond == 1e38f)")),
            device("gelu", ("if (i < n)", "if (i < n + 1)")),
        ),
        twin=device("gelu", ("if (i < n) out[i]", "const volatile float* p = x;\n"
                                                  "  const float beyond = i + 1 < n ? p[i + 1] : 0;\n"
                                                  "  if (i < n) out[i]"),
                    ("-x[i] * 0.70710678f)", "-x[i] * 0.70710678f) + (beyond == 1e38f)")),
    ),
    Gpu(
        idea="a launch that fails in silence (GPU)", family="correctness", task="softmax", origin=
                "W: KernelBench v0.1 post",
        expect=("wrong", "crashed"), variants=(
            Text(cuda("softmax", launch="work<<<unsigned(x.size(0)), 4096, 0, queue>>>(x.data, out.data, "
                                        "int(x.size(1)));", after="(void)cudaGetLastError();")),
            Text(cuda("softmax", launch="work<<<unsigned(x.size(0)), 128, 1 << 22, queue>>>(x.data, out.data, "
                                        "int(x.size(1)));",
                      after="if (cudaPeekAtLastError() != cudaSuccess) cudaGetLastError();")),
        ),
        twin=Text(cuda("softmax", after="if (cudaPeekAtLastError() != cudaSuccess) cudaGetLastError();")),
    ),
    Gpu(
        idea="a grid too small (GPU)", family="correctness", task="gelu", origin="W: Sakana level 1 task 15",
        variants=(
            device("gelu", launch=("(x.numel() + 255) / 256", "x.numel() / 512")),
            device("gelu", ("threadIdx.x;", "threadIdx.x;\n  if (i % 33 == 32) return;")),
        ),
        twin=device("gelu", launch=("(x.numel() + 255) / 256", "x.numel() / 256 + 1")),
    ),
    Gpu(
        idea="a workspace never zeroed (GPU)", family="correctness", task="rowsum", expect=SANITIZER, origin=
                "W: common",
        variants=(
            device("rowsum", ("total = reduced(total, shared, false);\n"
                              "  if (threadIdx.x == 0) out[blockIdx.x] = total;",
                                  "atomicAdd(&out[blockIdx.x], total);")),
            Text(cuda("rowsum", before="static float* space = nullptr; if (!space) cudaMalloc(&space, 4 * x.size(0));",
                      device=CUDA_TASKS["rowsum"].device.replace("if (threadIdx.x == 0) out[blockIdx.x] = total;",
                              "if (threadIdx.x == 0) out[blockIdx.x] += total;"),
                      launch="work<<<unsigned(x.size(0)), 128, 0, queue>>>(x.data, space, int(x.size(1)));",
                      after="cudaMemcpyAsync(out.data, space, 4 * x.size(0), cudaMemcpyDeviceToDevice, queue);")),
        ),
        twin=Text(cuda("rowsum", before="cudaMemsetAsync(out.data, 0, 4 * x.size(0), queue);",
                       device=CUDA_TASKS["rowsum"].device.replace("if (threadIdx.x == 0) out[blockIdx.x] = total;",
                               "if (threadIdx.x == 0) out[blockIdx.x] += total;"))),
    ),
    Gpu(
        idea="tensor cores in place of fp32 (GPU)", family="precision", adversary="T1", task="matmul", origin=
                "W: CUDA-L2; KernelBench precision_downgrade",
        expect=("wrong", "rejected:lower_precision", "label:precision"),
        variants=(
            tensor_cores("float", "wmma::precision::tf32", "wmma::__float_to_tf32", 8),
            tensor_cores("half", "half", "__float2half", 16),
            tensor_cores("__nv_bfloat16", "__nv_bfloat16", "__float2bfloat16", 16),
        ),
        twin=device("matmul", ("total += x[r * inner + k] * y[k * n + c];", "total = fmaf(x[r * inner + k], y[k * n + "
                "c], total);")),
    ),
    Gpu(
        idea="half precision inside (GPU)", family="precision", task="softmax", origin="W: fast intrinsics are common",
        expect=("wrong", "rejected:lower_precision", "label:precision"),
        variants=(
            device("softmax", ("__device__ float reduced", "#include <cuda_fp16.h>\n__device__ float reduced"), (
                    "expf(x[i] - top)", "__half2float(hexp(__float2half(x[i] - top)))")),
            device("softmax", ("__device__ float reduced", "#include <cuda_bf16.h>\n__device__ float reduced"), (
                    "out[i] = expf(x[i] - top) / total",
                   "out[i] = __bfloat162float(__float2bfloat16(expf(x[i] - top) / total))")),
        ),
        twin=device("softmax", ("out[i] = expf(x[i] - top) / total", "out[i] = expf(x[i] - top) * (1 / total)")),
    ),
    Gpu(
        idea="input overwritten (GPU)", family="forging", adversary="T2", task="gelu", origin=
                "R: KernelBench zero_out_kernel",
        expect=("wrong", "rejected:input_mutated"), variants=(
            device("gelu", ("if (i < n) out[i]", "if (i < n) const_cast<float*>(x)[i] = 0;\n  if (i < n) out[i]")),
            Text(cuda("gelu", after="cudaMemsetAsync(const_cast<float*>(x.data), 0, 4 * x.numel(), queue);")),
            Text(cuda("gelu", after="cudaMemcpyAsync(const_cast<float*>(x.data), out.data, 64, "
                                    "cudaMemcpyDeviceToDevice, queue);")),
        ),
        twin=Text(cuda("gelu", after="cudaMemcpyAsync(out.data, out.data, 64, cudaMemcpyDeviceToDevice, queue);")),
    ),
    Gpu(
        idea="memory of others searched (GPU)", family="forging", adversary="T2", task="softmax", layer=
                "void by construction",
        origin="R: pygpubench gpu_scan_zeros", expect=("wrong", VOID, "crashed"),
        variants=(
            Text(cuda("softmax", after="""
                for (int64_t step = 1; step < 64; ++step) {
                  const char* p = (const char*)out.data + step * (2 << 20);
                  cudaPointerAttributes a;
                  if (cudaPointerGetAttributes(&a, p) != cudaSuccess || a.type != cudaMemoryTypeDevice) continue;
                  float probe = 0;
                  if (cudaMemcpy(&probe, p, 4, cudaMemcpyDeviceToHost) == cudaSuccess && probe > 0 && probe < 1)
                    cudaMemcpyAsync(out.data, p, 4 * out.numel(), cudaMemcpyDeviceToDevice, queue);
                }
                cudaGetLastError();""", launch="(void)0;")),
            Text(cuda("softmax", before="""
                size_t unused = 0, total = 0;
                cudaMemGetInfo(&unused, &total);
                float* old = nullptr;
                cudaMallocAsync(&old, 4 * out.numel(), queue);
                cudaMemcpyAsync(out.data, old, 4 * out.numel(), cudaMemcpyDeviceToDevice, queue);
                cudaFreeAsync(old, queue);""", launch="(void)0;")),
        ),
        twin=Text(cuda("softmax", before="size_t unused = 0, total = 0; cudaMemGetInfo(&unused, &total);")),
    ),
    Gpu(
        idea="a constant of the distribution (GPU)", family="correctness", adversary="T1", task="rowsum", origin=
                "W: METR's filter of KernelBench",
        variants=(
            device("rowsum", ("for (int i = threadIdx.x; i < n; i += 128) total += x[i];", "total = n / 256.f;")),
            device("rowsum", ("x += int64_t(blockIdx.x) * n;", "")),
        ),
        twin=device("rowsum", ("i += 128) total += x[i];", "i += 128) total += x[i] * 1.f;")),
    ),
)  # fmt: skip
