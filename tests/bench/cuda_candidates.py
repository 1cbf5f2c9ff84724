"""Forty CUDA candidates for ten KernelBench problems, each in the spellings that different judges take.

Goes out: `candidates()`, a list of Texts. One device text per candidate is written out as a kernel-tier source (level
1) or a composed one (level 2), the same split for NVRTC, and a KernelBench file with `ModelNew` and `load_inline`.
Eight are wrong, each in a way that people get wrong; `wrong` says how. Knows nothing of judging.

The problems are those with short kernels and inputs of 32 MB to 0.5 GB, and one (ReLU) of 6.4 GB: the mean of level 1
is 3.4 GB, so that evaluators which make inputs on the CPU fare better here than on all of it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from string import Template

ROUND_TF32 = "__uint_as_float((__float_as_uint(V) + 0x1000u) & 0xffffe000u)"
ACROSS = """
template <class T, class F> __device__ T across(T v, F f) {
  __shared__ T parts[32];
  for (int d = 16; d; d >>= 1) v = f(v, __shfl_xor_sync(0xffffffffu, v, d));
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = parts[0];
  for (unsigned w = 1; w < blockDim.x / 32; ++w) v = f(v, parts[w]);
  return v;
}
"""
POINTWISE = """
extern "C" __global__ void kernel($pointers, float* __restrict__ out, int64_t total$scalars) {
  auto f = [&](float v, int64_t i) -> float { return $formula; };
  const int64_t first = blockIdx.x * int64_t(blockDim.x) + threadIdx.x, step = int64_t(gridDim.x) * blockDim.x;
  const int64_t n = $bound;
  const auto addresses = reinterpret_cast<unsigned long long>($like) | reinterpret_cast<unsigned long long>(out);
  const int64_t vectors = $vector && addresses % 16 == 0 ? n / 4 : 0;
  for (int64_t i = first; i < vectors; i += step) {
    const float4 v = reinterpret_cast<const float4*>($like)[i];
    reinterpret_cast<float4*>(out)[i] =
        make_float4(f(v.x, 4 * i), f(v.y, 4 * i + 1), f(v.z, 4 * i + 2), f(v.w, 4 * i + 3));
  }
  for (int64_t i = 4 * vectors + first; i < n; i += step) out[i] = f($like[i], i);
}
"""
LAYER_NORM = (
    ACROSS
    + """
extern "C" __global__ void kernel(const float* __restrict__ x, const float* __restrict__ ln_weight,
                                  const float* __restrict__ ln_bias, float* __restrict__ out, int64_t n, float eps) {
  const float* row = x + blockIdx.x * n;
  double sum = 0, squares = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) {
    const double v = row[i];
    sum += v;
    squares += v * v;
  }
  auto add = [](double a, double b) { return a + b; };
  const double mean = across(sum, add) / n, variance = across(squares, add) / n - mean * mean;
  const float scale = float(1 / sqrt(variance + $eps)), shift = float(mean);
  #pragma unroll $unroll
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x)
    out[blockIdx.x * n + i] = (row[i] - shift) * scale * ln_weight[i] + ln_bias[i];
}
"""
)
GELU_SOFTMAX = (
    ACROSS
    + """
extern "C" __global__ void kernel(const float* __restrict__ y, float* __restrict__ out, int64_t n) {
  const float* row = y + blockIdx.x * n;
  auto gelu = [](float v) { return 0.5f * v * (1.0f + erff(v * 0.70710678f)); };
  float top = gelu(row[0]), sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) top = fmaxf(top, gelu(row[i]));
  top = across(top, [](float a, float b) { return fmaxf(a, b); });
  for (int64_t i = threadIdx.x; i < $bound; i += blockDim.x) sum += expf(gelu(row[i]) - top);
  sum = across(sum, [](float a, float b) { return a + b; });
  for (int64_t i = threadIdx.x; i < n; i += blockDim.x) out[blockIdx.x * n + i] = expf(gelu(row[i]) - top) / sum;
}
"""
)
MATMUL = """
constexpr int T = $tile, R = $each, S = T * R;  // T x T threads, each with R x R results
extern "C" __global__ void kernel(const float* __restrict__ A, const float* __restrict__ B, float* __restrict__ out,
                                  int64_t m, int64_t n, int64_t k) {
  __shared__ float a[T][S + 1], b[T][S + 1];
  float sum[R][R] = {};
  const int64_t top = blockIdx.y * int64_t(S), left = blockIdx.x * int64_t(S);
  const int x = threadIdx.x, y = threadIdx.y;
  auto read = [](float V) { return $read; };
  for (int64_t at = 0; at < k; at += T) {
    for (int r = 0; r < R; ++r) {
      const int64_t row = top + y + r * T, column = left + x + r * T;
      a[x][y + r * T] = row < m && at + x < k ? read(A[row * k + at + x]) : 0.0f;
      b[y][x + r * T] = column < n && at + y < k ? read(B[(at + y) * n + column]) : 0.0f;
    }
    __syncthreads();
    for (int q = 0; q < T; ++q)
      for (int i = 0; i < R; ++i)
        for (int j = 0; j < R; ++j) sum[i][j] += a[q][y + i * T] * b[q][x + j * T];
    __syncthreads();
  }
  for (int i = 0; i < R; ++i)
    for (int j = 0; j < R; ++j) {
      const int64_t row = top + y + i * T, column = left + x + j * T;
      if (row < m && column < n) out[row * n + column] = sum[i][j];
    }
}
"""


@dataclass(frozen=True, slots=True)
class Variant:
    """One candidate of a task: what replaces the placeholders of its texts, and how it is wrong ("" for right)."""

    name: str
    values: dict[str, str]
    wrong: str = ""


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `tensors` and `numbers` are what the kernel is called with; `like` has the output's form."""

    problem: str
    tensors: tuple[str, ...]
    like: str
    numbers: tuple[str, ...]
    device: str
    grid: str
    block: str
    arguments: tuple[str, ...]  # of the kernel, after the output
    variants: tuple[Variant, ...]
    init: str  # arguments of ModelNew.__init__
    layers: tuple[str, ...]  # its lines
    call: str  # what its forward returns
    takes: str = "x"  # arguments of its forward
    composed: str = ""  # arguments of the composed forward; empty at level 1
    before: str = ""  # its library call, which makes `y`


@dataclass(frozen=True, slots=True)
class Texts:
    """One candidate in all spellings. `own` is of tier `own_tier`."""

    problem: str
    variant: str
    wrong: str
    own_tier: str
    own: str
    split: str
    model_new: str

    @property
    def name(self) -> str:
        return f"{self.problem}/{self.variant}"


def _pointwise(
    problem: str,
    formula: str,
    *,
    wrong: Variant | None = None,
    tensors: tuple[str, ...] = ("x",),
    like: str = "x",
    numbers: tuple[str, ...] = (),
    columns: bool = False,
    init: str = "",
    layers: tuple[str, ...] = (),
    call: str,
    takes: str = "x",
    composed: str = "",
    before: str = "",
) -> Task:
    scalars = "".join(f", float {name}" for name in numbers) + (", int64_t columns" if columns else "")
    fixed = {
        "pointers": ", ".join(f"const float* __restrict__ {t}" for t in tensors),
        "scalars": scalars,
        "like": like,
        "formula": formula,
        "bound": "total",
    }
    variants = [
        Variant("block256", fixed | _shape(like, 256)),
        Variant("block128_vector4", fixed | _shape(like, 128, vector=True)),
        Variant("block512_vector4_grid2112", fixed | _shape(like, 512, vector=True, cap=2112)),
        Variant("block1024_grid4224", fixed | _shape(like, 1024, cap=4224)),
    ]
    if wrong is not None:
        variants[3] = Variant(wrong.name, variants[0].values | wrong.values, wrong.wrong)
    arguments = (f"{like}.numel()", *(f"float({n})" for n in numbers), *([f"{like}.size(-1)"] if columns else []))
    return Task(
        problem,
        tensors,
        like,
        numbers,
        POINTWISE,
        "dim3(unsigned($blocks))",
        "dim3($block)",
        arguments,
        tuple(variants),
        init,
        layers,
        call,
        takes,
        composed,
        before,
    )


def _shape(like: str, block: int, *, vector: bool = False, cap: int = 0) -> dict[str, str]:
    """A pointwise launch: threads of a block, four elements at a time or one, and the most blocks (0: no limit)."""
    each = 4 * block if vector else block
    blocks = f"({like}.numel() + {each - 1}) / {each}"
    blocks = f"{blocks} < {cap} ? {blocks} : {cap}" if cap else blocks
    return {"block": str(block), "vector": "true" if vector else "false", "blocks": blocks}


def _rows(wrong: Variant, blocks: tuple[int, ...], values: dict[str, str]) -> tuple[Variant, ...]:
    """A block for each row: three right ones of different sizes and a wrong one."""
    right = tuple(Variant(f"block{block}", values | {"block": str(block)}) for block in blocks)
    return (*right, Variant(wrong.name, values | wrong.values, wrong.wrong))


GELU = "0.5f * V * (1.0f + erff(V * 0.70710678f))"
TASKS = (
    _pointwise(
        "level1/12_Matmul_with_diagonal_matrices_",
        "A[i / columns] * v",
        tensors=("A", "B"),
        like="B",
        columns=True,
        wrong=Variant("last_element", {"bound": "total - 1"}, "off by one: the last element is not written"),
        takes="A, B",
        call="kernels.run(A, B)",
    ),
    _pointwise(
        "level1/88_MinGPTNewGelu",
        "scale * v * (1.0f + tanhf(scale_2 * (v + scale_1 * v * v * v)))",
        numbers=("scale", "exponent", "scale_1", "scale_2"),
        wrong=Variant(
            "erf",
            {"formula": "0.5f * v * (1.0f + erff(v * 0.70710678f))"},
            "wrong formula: the exact GELU instead of the tanh one",
        ),
        call="kernels.run(x, 0.5, 3.0, 0.044715, math.sqrt(2.0 / math.pi))",
    ),
    Task(
        "level1/1_Square_matrix_multiplication_",
        ("A", "B"),
        "A",
        (),
        MATMUL,
        "dim3(unsigned((B.size(1) + $tile * $each - 1) / ($tile * $each)), "
        "unsigned((A.size(0) + $tile * $each - 1) / ($tile * $each)))",
        "dim3($tile, $tile)",
        ("A.size(0)", "B.size(1)", "A.size(1)"),
        (
            Variant("tile16", {"tile": "16", "each": "1", "read": "V"}),
            Variant("tile32", {"tile": "32", "each": "1", "read": "V"}),
            Variant("tile16_each4", {"tile": "16", "each": "4", "read": "V"}),
            Variant("tf32", {"tile": "16", "each": "4", "read": ROUND_TF32}, "lower precision: factors cut to TF32"),
        ),
        "",
        (),
        "kernels.run(A, B)",
        takes="A, B",
    ),
    Task(
        "level1/40_LayerNorm",
        ("x", "ln_weight", "ln_bias"),
        "x",
        ("eps",),
        LAYER_NORM,
        "dim3(unsigned(x.numel() / ln_weight.numel()))",
        "dim3($block)",
        ("ln_weight.numel()", "float(eps)"),
        _rows(
            Variant("no_eps", {"eps": "0.0f", "block": "512"}, "wrong formula: eps is left out"),
            (256, 512, 1024),
            {"eps": "eps", "unroll": "4"},
        ),
        "normalized_shape",
        ("self.ln = nn.LayerNorm(normalized_shape)",),
        "kernels.run(x, self.ln.weight, self.ln.bias, self.ln.eps)",
    ),
    _pointwise(
        "level2/12_Gemm_Multiply_LeakyReLU",
        "v * multiplier > 0 ? v * multiplier : negative_slope * v * multiplier",
        tensors=("y",),
        like="y",
        numbers=("multiplier", "negative_slope"),
        wrong=Variant(
            "slope",
            {"formula": "v * multiplier > 0 ? v * multiplier : 0.01f * v * multiplier"},
            "wrong formula: the default slope instead of the given one",
        ),
        init="in_features, out_features, multiplier, negative_slope",
        layers=(
            "self.gemm = nn.Linear(in_features, out_features)",
            "self.multiplier = multiplier",
            "self.negative_slope = negative_slope",
        ),
        call="kernels.run(self.gemm(x), self.multiplier, self.negative_slope)",
        composed="x, gemm_weight, gemm_bias, *, multiplier, negative_slope",
        before="F.linear(x, gemm_weight, gemm_bias)",
    ),
    _pointwise(
        "level2/76_Gemm_Add_ReLU",
        "fmaxf(v + bias[i % columns], 0.0f)",
        tensors=("y", "bias"),
        like="y",
        columns=True,
        wrong=Variant(
            "no_tail", _shape("y", 384) | {"bound": "total / 384 * 384"}, "missing tail: only whole blocks are written"
        ),
        init="in_features, out_features, bias_shape",
        layers=(
            "self.gemm = nn.Linear(in_features, out_features, bias=False)",
            "self.bias = nn.Parameter(torch.randn(bias_shape))",
        ),
        call="kernels.run(self.gemm(x), self.bias)",
        composed="x, bias, gemm_weight",
        before="F.linear(x, gemm_weight)",
    ),
    _pointwise(
        "level2/86_Matmul_Divide_GELU",
        GELU.replace("V", "(v / divisor)"),
        tensors=("y",),
        like="y",
        numbers=("divisor",),
        init="input_size, output_size, divisor",
        layers=("self.linear = nn.Linear(input_size, output_size)", "self.divisor = divisor"),
        call="kernels.run(self.linear(x), self.divisor)",
        composed="x, linear_weight, linear_bias, *, divisor",
        before="F.linear(x, linear_weight, linear_bias)",
    ),
    Task(
        "level2/99_Matmul_GELU_Softmax",
        ("y",),
        "y",
        (),
        GELU_SOFTMAX,
        "dim3(unsigned(y.numel() / y.size(-1)))",
        "dim3($block)",
        ("y.size(-1)",),
        _rows(
            Variant("short_sum", {"bound": "n - 1", "block": "256"}, "off by one: the last column is not summed"),
            (128, 256, 512),
            {"bound": "n"},
        ),
        "in_features, out_features",
        ("self.linear = nn.Linear(in_features, out_features)",),
        "kernels.run(self.linear(x))",
        composed="x, linear_weight, linear_bias, *, dim",
        before="F.linear(x, linear_weight, linear_bias)",
    ),
    _pointwise(
        "level2/57_Conv2d_ReLU_HardSwish",
        "fmaxf(v, 0.0f) * fminf((fmaxf(v, 0.0f) + 3.0f) / 6.0f, 1.0f)",
        tensors=("y",),
        like="y",
        init="in_channels, out_channels, kernel_size",
        layers=("self.conv = nn.Conv2d(in_channels, out_channels, kernel_size)",),
        call="kernels.run(self.conv(x))",
        composed="x, conv_weight, conv_bias, *, offset, divisor, min_value, max_value",
        before="F.conv2d(x, conv_weight, conv_bias)",
    ),
    _pointwise(
        "level1/19_ReLU",
        "v > 0.0f || v != v ? v : 0.0f",
        wrong=Variant("copy", {"formula": "v"}, "wrong formula: a copy, the same on inputs in [0, 1)"),
        call="kernels.run(x)",
    ),
)


def candidates() -> list[Texts]:
    """All forty, a problem's four one after the other."""
    return [_texts(task, variant) for task in TASKS for variant in task.variants]


def _texts(task: Task, variant: Variant) -> Texts:
    device, grid, block = (Template(t).substitute(variant.values) for t in (task.device, task.grid, task.block))
    own = '#include <cuda_runtime.h>\n#include "rag_kernel.h"\n' + device + _host(task, grid, block)
    split = f'#include "rag_kernel.h"\n#if RK_DEVICE{device}#endif\n#if RK_HOST{_host(task, grid, block)}#endif\n'
    if task.composed:
        own, split = _composed(task, own), _composed(task, split)
    model_new = _model_new(task, device, grid, block)
    return Texts(
        task.problem, variant.name, variant.wrong, "composed" if task.composed else "kernel", own, split, model_new
    )


def _host(task: Task, grid: str, block: str) -> str:
    tensors = [f"rk::Tensor<const float> {t}" for t in task.tensors] + [f"double {n}" for n in task.numbers]
    passed = ", ".join([*(f"{t}.data" for t in task.tensors), "out.data", *task.arguments])
    name = "run" if task.composed else "forward"
    return (
        f"\nvoid launch({', '.join(tensors)}, rk::Tensor<float> out) {{\n"
        f"  RK_LAUNCH(kernel, ({grid}), ({block}), 0, out, {passed});\n}}\nRK_EXPORT({name}, launch)\n"
    )


def _composed(task: Task, kernels: str) -> str:
    passed = ", ".join([*task.tensors, *task.numbers, "out"])
    return (
        f"KERNELS = r'''\n{kernels}'''\n\ndef forward({task.composed}):\n    y = {task.before}\n"
        f"    out = torch.empty_like(y)\n    kernels.run({passed})\n    return out\n"
    )


def _model_new(task: Task, device: str, grid: str, block: str) -> str:
    """A KernelBench file in its usual form: load_inline, the current (default) stream, contiguous inputs."""
    head = ", ".join([*(f"torch::Tensor {t}" for t in task.tensors), *(f"double {n}" for n in task.numbers)])
    passed = ", ".join([*(f"{t}.data_ptr<float>()" for t in task.tensors), "out.data_ptr<float>()", *task.arguments])
    unique = hashlib.sha256((task.problem + device + grid + block).encode()).hexdigest()[:12]
    takes = "self" + (f", {task.init}" if task.init else "")
    layers = "".join(f"        {line}\n" for line in task.layers)
    return f"""import math
import torch
import torch.nn as nn
from torch.utils.cpp_extension import load_inline

source = r'''
#include <torch/extension.h>
#include <cuda_runtime.h>
{device}
torch::Tensor run({head}) {{
  auto out = torch::empty_like({task.like});
  kernel<<<{grid}, {block}>>>({passed});
  return out;
}}
'''
declaration = "torch::Tensor run({head});"
kernels = load_inline(name="candidate_{unique}", cpp_sources=declaration, cuda_sources=source, functions=["run"])


class ModelNew(nn.Module):
    def __init__({takes}):
        super().__init__()
{layers}
    def forward(self, {task.takes}):
        return {task.call}
"""
