"""Honest CUDA kernels: reductions, softmax, norms, products, scans, streams. Goes out: `kernels()`, all for a GPU."""

from __future__ import annotations

from collections.abc import Iterator

from rag_kernels.eval.records import Candidate
from rag_kernels.eval.zoo.honest.source_pieces import Honest
from rag_kernels.eval.zoo.problems import task

HEAD = """\
#include <cuda_runtime.h>
#include "rag_kernel.h"
typedef rk::Tensor<const float> In;
typedef rk::Tensor<float> Out;
"""
# `across(v, op)` combines one value of each thread of a block of 256; every thread gets the result.
ACROSS = {
    "shuffles": """\
template <class F> __device__ float across(float v, F op) {
  __shared__ float part[8];
  for (int step = 16; step; step >>= 1) v = op(v, __shfl_xor_sync(0xffffffffu, v, step));
  __syncthreads();
  if (threadIdx.x % 32 == 0) part[threadIdx.x / 32] = v;
  __syncthreads();
  v = part[0];
  for (int w = 1; w < 8; ++w) v = op(v, part[w]);
  return v;
}
""",
    "shared tree": """\
template <class F> __device__ float across(float v, F op) {
  __shared__ float all[256];
  __syncthreads();
  all[threadIdx.x] = v;
  for (int step = 128; step; step >>= 1) {
    __syncthreads();
    if (threadIdx.x < step) all[threadIdx.x] = op(all[threadIdx.x], all[threadIdx.x + step]);
  }
  __syncthreads();
  return all[0];
}
""",
}
ADD, MAX = "[](float a, float b) { return a + b; }", "[](float a, float b) { return fmaxf(a, b); }"
OWN = "for (int64_t i = threadIdx.x; i < n; i += blockDim.x)"
# One block a row a[0..n-1]; `to` is the row of the output, or its single element.
BLOCKS = {
    "row sum": (
        task("x.sum(-1)", "torch.rand(257, 1021)"),
        "In x, int64_t, Out out",
        "1",
        f"""\
float s = 0;
  {OWN} s += a[i];
  s = across(s, {ADD});
  if (threadIdx.x == 0) to[0] = s;""",
    ),
    "compensated row sum": (
        task("x.sum(-1)", "torch.randn(61, 4099)"),
        "In x, int64_t, Out out",
        "1",
        f"""\
float s = 0, lost = 0;
  {OWN} {{ const float v = a[i] - lost, next = s + v; lost = (next - s) - v; s = next; }}
  s = across(s - lost, {ADD});
  if (threadIdx.x == 0) to[0] = s;""",
    ),
    "softmax": (
        task("torch.softmax(x, dim=-1)", "torch.randn(257, 1000)"),
        "In x, int64_t, Out out",
        "n",
        f"""\
float top = -INFINITY, total = 0;
  {OWN} top = fmaxf(top, a[i]);
  top = across(top, {MAX});
  {OWN} total += expf(a[i] - top);
  total = across(total, {ADD});
  {OWN} to[i] = expf(a[i] - top) / total;""",
    ),
    "online softmax": (
        task("torch.softmax(x, dim=-1)", "torch.randn(131, 517)"),
        "In x, int64_t, Out out",
        "n",
        f"""\
float own = -INFINITY, total = 0;
  {OWN} {{ const float best = fmaxf(own, a[i]); total = total * expf(own - best) + expf(a[i] - best); own = best; }}
  const float top = across(own, {MAX});
  total = across(total == 0 ? 0.0f : total * expf(own - top), {ADD});
  {OWN} to[i] = expf(a[i] - top) / total;""",
    ),
    "logsumexp": (
        task("torch.logsumexp(x, dim=-1)", "torch.randn(257, 511)"),
        "In x, int64_t, Out out",
        "1",
        f"""\
float top = -INFINITY, total = 0;
  {OWN} top = fmaxf(top, a[i]);
  top = across(top, {MAX});
  {OWN} total += expf(a[i] - top);
  total = across(total, {ADD});
  if (threadIdx.x == 0) to[0] = top + logf(total);""",
    ),
    "layer norm": (
        task("F.layer_norm(x, (768,))", "torch.randn(129, 768)"),
        "In x, double, Out out",
        "n",
        f"""\
float mean = 0, square = 0;
  {OWN} mean += a[i];
  mean = across(mean, {ADD}) / n;
  {OWN} square += (a[i] - mean) * (a[i] - mean);
  square = across(square, {ADD});
  {OWN} to[i] = (a[i] - mean) * rsqrtf(square / n + 1e-5f);""",
    ),
    "unit rows": (
        task("x / x.norm(dim=-1, keepdim=True)", "torch.randn(257, 301)"),
        "In x, int64_t, Out out",
        "n",
        f"""\
float square = 0;
  {OWN} square += a[i] * a[i];
  square = across(square, {ADD});
  {OWN} to[i] = a[i] / sqrtf(square);""",
    ),
    "largest": (
        task("x.amax(-1)", "torch.randn(257, 509)"),
        "In x, int64_t, Out out",
        "1",
        f"""\
float top = -INFINITY;
  {OWN} top = fmaxf(top, a[i]);
  top = across(top, {MAX});
  if (threadIdx.x == 0) to[0] = top;""",
    ),
}
LAUNCH = "cudaStream_t stream = (cudaStream_t)rk::stream(out);\n"
MATMUL = task("x @ y", "torch.randn(129, 257), torch.randn(257, 65)", arguments="x, y")
PRODUCT = """
void run(In x, In y, Out out) {{
  const int m = int(x.size(0)), depth = int(x.size(1)), n = int(y.size(1));
  {launch}  {clear}work<<<{grid}, dim3(16, 16), 0, stream>>>(x.data, y.data, out.data, m, n, depth);
}}
"""
SIGNATURE = "__global__ void work(const float* a, const float* b, float* c, int m, int n, int depth) {\n"
PLACE = "  const int i = blockIdx.y * 16 + threadIdx.y, j = blockIdx.x * 16 + threadIdx.x;\n"
GRID = "dim3((n + 15) / 16, (m + 15) / 16{})"
PRODUCTS = {
    "naive": (
        GRID.format(""),
        "",
        """\
  if (i >= m || j >= n) return;
  float s = 0;
  for (int k = 0; k < depth; ++k) s += a[i * depth + k] * b[k * n + j];
  c[i * n + j] = s;
""",
    ),
    "double": (
        GRID.format(""),
        "",
        """\
  if (i >= m || j >= n) return;
  double s = 0;
  for (int k = depth; k-- > 0;) s += double(a[i * depth + k]) * b[k * n + j];
  c[i * n + j] = float(s);
""",
    ),
    "shared tiles": (
        GRID.format(""),
        "",
        """\
  __shared__ float left[16][17], right[16][17];
  float s = 0;
  for (int first = 0; first < depth; first += 16) {
    const int kx = first + threadIdx.x, ky = first + threadIdx.y;
    left[threadIdx.y][threadIdx.x] = i < m && kx < depth ? a[i * depth + kx] : 0;
    right[threadIdx.y][threadIdx.x] = ky < depth && j < n ? b[ky * n + j] : 0;
    __syncthreads();
    for (int k = 0; k < 16; ++k) s += left[threadIdx.y][k] * right[k][threadIdx.x];
    __syncthreads();
  }
  if (i < m && j < n) c[i * n + j] = s;
""",
    ),
    "split depth, atomics": (
        GRID.format(", 4"),
        "cudaMemsetAsync(out.data, 0, sizeof(float) * m * n, stream);\n  ",
        """\
  if (i >= m || j >= n) return;
  float s = 0;
  for (int k = blockIdx.z; k < depth; k += 4) s += a[i * depth + k] * b[k * n + j];
  atomicAdd(c + i * n + j, s);
""",
    ),
}
GELU = task("F.gelu(x)", "torch.randn(301, 257)")
VALUE = "const float v = x[i]; out[i] = {};"
ERF, ERFC = "0.5f * v * (1 + erff(v * 0.70710678f))", "0.5f * v * erfcf(-v * 0.70710678f)"
POINT = """
__global__ void work(const float* x, float* out, int64_t first, int64_t n) {{
  {loop}
}}
void run(In x, Out out) {{
  const int64_t n = x.numel();
  {launch}  {start}
}}
"""
STRIDE = "for (int64_t i = first + blockIdx.x * 256 + threadIdx.x; i < n; i += int64_t(gridDim.x) * 256) { BODY }"
ONE = "const int64_t i = first + blockIdx.x * int64_t(256) + threadIdx.x; if (i < n) { BODY }"
QUADS = """\
const bool even = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(out)) % 16 == 0;
  const int64_t at = (blockIdx.x * int64_t(256) + threadIdx.x) * 4;
  if (even && at + 4 <= n) {  // four at once where both pointers allow it
    float4 q = reinterpret_cast<const float4*>(x)[at / 4];
    float* each = &q.x;
    for (int j = 0; j < 4; ++j) { const float v = each[j]; each[j] = VALUE; }
    reinterpret_cast<float4*>(out)[at / 4] = q;
    return;
  }
  for (int64_t i = at; i < min(at + 4, n); ++i) { BODY }"""
SIDE_STREAM = """\
static cudaStream_t side = nullptr;
  static cudaEvent_t fork = nullptr, join = nullptr;
  if (!side) {
    cudaStreamCreateWithFlags(&side, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&fork, cudaEventDisableTiming);
    cudaEventCreateWithFlags(&join, cudaEventDisableTiming);
  }
  cudaEventRecord(fork, stream);  // the second half on a stream of its own, joined before this returns
  cudaStreamWaitEvent(side, fork, 0);
  work<<<64, 256, 0, stream>>>(x.data, out.data, 0, n / 2);
  work<<<64, 256, 0, side>>>(x.data, out.data, n / 2, n);
  cudaEventRecord(join, side);
  cudaStreamWaitEvent(stream, join, 0);"""
POINTS = {
    "grid-stride": (STRIDE, ERF, "work<<<120, 256, 0, stream>>>(x.data, out.data, 0, n);"),
    "one a thread": (ONE, ERFC, "work<<<unsigned((n + 255) / 256), 256, 0, stream>>>(x.data, out.data, 0, n);"),
    "quads": (QUADS, ERF, "work<<<unsigned((n + 1023) / 1024), 256, 0, stream>>>(x.data, out.data, 0, n);"),
    "side stream": (STRIDE, ERFC, SIDE_STREAM),
}
# A block keeps the weights of one feature, which no kernel before a forward writes, and then waits for what it reads.
BEFORE_THE_WAIT = {
    "kept": "for (int k = threadIdx.x; k < depth; k += 128) own[k] = w[int64_t(blockIdx.x) * depth + k];",
    "in L2": """\
for (int k = 32 * threadIdx.x; k < depth; k += 32 * 128)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(w + int64_t(blockIdx.x) * depth + k));""",
}
AFTER_THE_WAIT = {"kept": "", "in L2": BEFORE_THE_WAIT["kept"]}
LINEAR = task(
    "F.linear(x, self.weight)", "torch.randn(9, 301)", setup="self.weight = nn.Parameter(torch.randn(257, 301))"
)
PROGRAMMATIC = """
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
#define LET_NEXT_BEGIN asm volatile("griddepcontrol.launch_dependents;")
#define WAIT asm volatile("griddepcontrol.wait;" ::: "memory")
#else
#define LET_NEXT_BEGIN
#define WAIT
#endif
__global__ void work(const float* x, const float* w, float* out, int rows, int depth, int features) {{
  extern __shared__ float own[];
  LET_NEXT_BEGIN;
  {before}
  WAIT;
  {after}
  __syncthreads();
  for (int r = threadIdx.x / 32; r < rows; r += 4) {{
    float s = 0;
    for (int k = threadIdx.x % 32; k < depth; k += 32) s += x[int64_t(r) * depth + k] * own[k];
    for (int step = 16; step; step >>= 1) s += __shfl_xor_sync(0xffffffffu, s, step);
    if (threadIdx.x % 32 == 0) out[int64_t(r) * features + blockIdx.x] = s;
  }}
}}
void run(In x, In w, Out out) {{
  cudaLaunchAttribute how = {{}};
  how.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  how.val.programmaticStreamSerializationAllowed = 1;
  cudaFuncAttributes built;
  cudaFuncGetAttributes(&built, work);
  cudaLaunchConfig_t plan = {{}};
  plan.gridDim = dim3(unsigned(w.size(0))), plan.blockDim = dim3(128);
  plan.stream = (cudaStream_t)rk::stream(out), plan.dynamicSmemBytes = sizeof(float) * w.size(1);
  plan.attrs = &how, plan.numAttrs = built.ptxVersion >= 90;  // built for older ones it has no way to wait
  cudaLaunchKernelEx(&plan, work, (const float*)x.data, (const float*)w.data, (float*)out.data, int(x.size(0)),
      int(w.size(1)), int(w.size(0)));
}}
"""
OTHERS = (
    (
        "transpose",
        task("x.transpose(1, 2).contiguous()", "torch.randn(5, 133, 57)"),
        (),
        """
__global__ void work(const float* x, float* out, int h, int w) {
  __shared__ float tile[32][33];
  const int64_t base = int64_t(blockIdx.z) * h * w;
  for (int r = threadIdx.y; r < 32; r += 8) {
    const int i = blockIdx.y * 32 + r, j = blockIdx.x * 32 + threadIdx.x;
    if (i < h && j < w) tile[r][threadIdx.x] = x[base + int64_t(i) * w + j];
  }
  __syncthreads();
  for (int r = threadIdx.y; r < 32; r += 8) {
    const int i = blockIdx.y * 32 + threadIdx.x, j = blockIdx.x * 32 + r;
    if (i < h && j < w) out[base + int64_t(j) * h + i] = tile[threadIdx.x][r];
  }
}
void run(In x, Out out) {
  const int h = int(x.size(1)), w = int(x.size(2));
  work<<<dim3((w + 31) / 32, (h + 31) / 32, unsigned(x.size(0))), dim3(32, 8), 0,
      (cudaStream_t)rk::stream(out)>>>(x.data, out.data, h, w);
}
""",
    ),
    (
        "total by atomics",
        task("x.sum()", "torch.rand(97, 111)"),
        ("nondeterministic",),
        """
__global__ void work(const float* x, float* out, int64_t n) {
  float s = 0;
  for (int64_t i = blockIdx.x * 128 + threadIdx.x; i < n; i += gridDim.x * 128) s += x[i];
  for (int step = 16; step; step >>= 1) s += __shfl_down_sync(0xffffffffu, s, step);
  if (threadIdx.x % 32 == 0) atomicAdd(out, s);
}
void run(In x, Out out) {
  cudaStream_t stream = (cudaStream_t)rk::stream(out);
  cudaMemsetAsync(out.data, 0, sizeof(float), stream);
  work<<<32, 128, 0, stream>>>(x.data, out.data, x.numel());
}
""",
    ),
    (
        "argmax",
        task("x.argmax(-1)", "torch.randn(257, 301)"),
        (),
        """
__global__ void work(const float* x, int64_t* out, int n) {
  const float* a = x + int64_t(blockIdx.x) * n;
  float top = -INFINITY; int at = n;
  for (int i = threadIdx.x; i < n; i += 32) if (a[i] > top || at == n) { top = a[i]; at = i; }
  for (int step = 16; step; step >>= 1) {
    const float v = __shfl_xor_sync(0xffffffffu, top, step);
    const int j = __shfl_xor_sync(0xffffffffu, at, step);
    if (v > top || (v == top && j < at)) { top = v; at = j; }
  }
  if (threadIdx.x == 0) out[blockIdx.x] = at;
}
void run(In x, int64_t, rk::Tensor<int64_t> out) {
  work<<<unsigned(x.size(0)), 32, 0, (cudaStream_t)rk::stream(out)>>>(x.data, out.data, int(x.size(1)));
}
""",
    ),
    (
        "embedding",
        task(
            "F.embedding(i, self.weight)",
            "torch.randint(0, 501, (37, 29))",
            arguments="i",
            setup="self.weight = nn.Parameter(torch.randn(501, 67))",
        ),
        (),
        """
__global__ void work(const int64_t* i, const float* w, float* out, int width) {
  for (int j = threadIdx.x; j < width; j += blockDim.x) out[int64_t(blockIdx.x) * width +
      j] = w[i[blockIdx.x] * width + j];
}
void run(rk::Tensor<const int64_t> i, In w, Out out) {
  work<<<unsigned(i.numel()), 64, 0, (cudaStream_t)rk::stream(out)>>>(i.data, w.data, out.data, int(w.size(1)));
}
""",
    ),
    (
        "cumulative sum",
        task("torch.cumsum(x, dim=-1)", "torch.rand(131, 257)"),
        (),
        """
__global__ void work(const float* x, float* out, int n) {
  float before = 0;
  for (int first = 0; first < n; first += 32) {  // a warp a row: sums of 32, then what came before
    const int i = first + threadIdx.x;
    const int64_t place = int64_t(blockIdx.x) * n + i;
    float s = i < n ? x[place] : 0;
    for (int step = 1; step < 32; step *= 2) {
      const float v = __shfl_up_sync(0xffffffffu, s, step);
      if (threadIdx.x >= step) s += v;
    }
    if (i < n) out[place] = before + s;
    before += __shfl_sync(0xffffffffu, s, 31);
  }
}
void run(In x, int64_t, Out out) {
  work<<<unsigned(x.size(0)), 32, 0, (cudaStream_t)rk::stream(out)>>>(x.data, out.data, int(x.size(1)));
}
""",
    ),
    (
        "attention",
        task(
            "F.scaled_dot_product_attention(q, k, v)", ", ".join(["torch.randn(2, 3, 67, 24)"] * 3), arguments="q, k, v"
        ),
        (),
        """
__global__ void work(const float* q, const float* k, const float* v, float* out, int queries, int keys, int depth) {
  extern __shared__ float sum[];  // one warp a query; lanes go over the depth
  const int64_t head = blockIdx.x / queries, row = blockIdx.x;
  for (int d = threadIdx.x; d < depth; d += 32) sum[d] = 0;
  float top = -INFINITY, total = 0;
  const float scale = 1 / sqrtf(float(depth));
  for (int j = 0; j < keys; ++j) {
    float s = 0;
    for (int d = threadIdx.x; d < depth; d += 32) s += q[row * depth + d] * k[(head * keys + j) * depth + d];
    for (int step = 16; step; step >>= 1) s += __shfl_xor_sync(0xffffffffu, s, step);
    s *= scale;
    const float best = fmaxf(top, s), shrink = expf(top - best), weight = expf(s - best);
    total = total * shrink + weight;
    for (int d = threadIdx.x; d < depth; d += 32) sum[d] = sum[d] * shrink + weight * v[(head * keys + j) * depth + d];
    top = best;
  }
  for (int d = threadIdx.x; d < depth; d += 32) out[row * depth + d] = sum[d] / total;
}
void run(In q, In k, In v, Out out) {
  const int queries = int(q.size(2)), keys = int(k.size(2)), depth = int(q.size(3));
  work<<<unsigned(q.numel() / depth), 32, depth * sizeof(float), (cudaStream_t)rk::stream(out)>>>(
      q.data, k.data, v.data, out.data, queries, keys, depth);
}
""",
    ),
)


def _gpu(body: str) -> Candidate:
    return Candidate(f"{HEAD}{body}RK_EXPORT(forward, run)\n", "kernel", "cuda")


def kernels() -> Iterator[Honest]:
    """Yield all of this family."""
    for name, (source, parameters, width, work) in BLOCKS.items():
        for how, across in ACROSS.items():
            body = f"{across}__global__ void work(const float* x, float* out, int64_t n) {{\n"
            body += f"  const float* a = x + blockIdx.x * n;\n  float* to = out + blockIdx.x * {width};\n  {work}\n}}\n"
            body += f"void run({parameters}) {{\n  const int64_t n = x.size(-1);\n  {LAUNCH}"
            body += "  work<<<unsigned(x.numel() / n), 256, 0, stream>>>(x.data, out.data, n);\n}\n"
            yield Honest(f"{name}: {how}", "cuda rows", source, _gpu(body))
    for name, (grid, clear, work) in PRODUCTS.items():
        body = f"{SIGNATURE}{PLACE}{work}}}" + PRODUCT.format(grid=grid, launch=LAUNCH, clear=clear)
        labels = ("nondeterministic",) if "atomics" in name else ()
        yield Honest(f"matmul: {name}", "cuda products", MATMUL, _gpu(body), labels)
    for name, (loop, value, start) in POINTS.items():
        text = loop.replace("BODY", VALUE.format(value)).replace("= VALUE", f"= {value}")
        body = POINT.format(loop=text, launch=LAUNCH, start=start)
        yield Honest(f"gelu: {name}", "cuda pointwise", GELU, _gpu(body))
    for name, before in BEFORE_THE_WAIT.items():
        body = PROGRAMMATIC.format(before=before, after=AFTER_THE_WAIT[name])
        yield Honest(f"linear: weights {name} before the wait", "cuda programmatic", LINEAR, _gpu(body))
    for name, source, allowed, body in OTHERS:
        yield Honest(name, "cuda others", source, _gpu(body), allowed)
