"""Element by element: activations, fusions, masks; plain, in vectors, in threads, in stages. Goes out: `kernels()`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rag_kernels.eval.zoo.honest.source_pieces import Honest, cpu, kernel
from rag_kernels.eval.zoo.problems import task

# How the elements are gone through; `element(i)` is the value to store at i.
LOOPS = {
    "plain": "for (int64_t i = 0; i < n; ++i) put(out.data[i], element(i));",
    "backwards": "for (int64_t i = n; i-- > 0;) put(out.data[i], element(i));",
    "omp": "#pragma omp parallel for\n  for (int64_t i = 0; i < n; ++i) put(out.data[i], element(i));",
    "omp simd": "#pragma omp parallel for simd schedule(static)\n"
    "  for (int64_t i = 0; i < n; ++i) put(out.data[i], element(i));",
    "unrolled": "int64_t i = 0;\n  for (; i + 4 <= n; i += 4) {\n"
    "    const Acc v[4] = {Acc(element(i)), Acc(element(i + 1)), Acc(element(i + 2)), Acc(element(i + 3))};\n"
    "    for (int j = 0; j < 4; ++j) put(out.data[i + j], v[j]);\n  }\n"
    "  for (; i < n; ++i) put(out.data[i], element(i));",
    "blocks": "each((n + 255) / 256, [&](int64_t block) {\n"
    "    for (int64_t i = block * 256; i < std::min(block * 256 + 256, n); ++i) put(out.data[i], element(i));\n  });",
    "strided": "each(7, [&](int64_t first) { for (int64_t i = first; i < n; i += 7) put(out.data[i], element(i)); });",
}
SCHEDULED = {"blocks": "pool", "strided": "threads"}


@dataclass(frozen=True, slots=True)
class Point:
    """A pointwise problem and one or more C++ forms of its element i."""

    name: str
    source: str
    parameters: str
    forms: dict[str, str]
    dtype: str = "float32"
    loops: tuple[str, ...] = tuple(LOOPS)


FLAT, PAIR = "torch.randn(301, 257)", "torch.randn(133, 157), torch.randn(133, 157)"
ROOT = "Acc(0.70710678118654752440)"
V = "const Acc v = num(x.data[i]); return "
BIAS = "self.bias = nn.Parameter(torch.zeros(257))"
SHIFTED = "const Acc v = num(x.data[i]) + num(b.data[i % b.numel()]); return "
SOME, OTHERS = ("plain", "omp", "blocks"), ("backwards", "omp simd", "unrolled", "strided")
MASK = "typedef rk::Tensor<const bool> Mask;\ntypedef rk::Tensor<bool> Truth;\n"
POINTS = (
    Point(
        "gelu",
        task("F.gelu(x)", FLAT),
        "In x, Out out",
        {
            "erf": f"{V}v * Acc(0.5) * (1 + std::erf(v * {ROOT}));",
            "erfc": f"{V}Acc(0.5) * v * std::erfc(-v * {ROOT});",
        },
    ),
    Point(
        "gelu fp64",
        task("F.gelu(x)", "torch.randn(31, 7, 67, dtype=torch.float64)"),
        "In x, Out out",
        {
            "erfc": f"{V}Acc(0.5) * v * std::erfc(-v * {ROOT});",
        },
        "float64",
        OTHERS,
    ),
    Point(
        "gelu by tanh",
        task("F.gelu(x, approximate='tanh')", FLAT),
        "In x, Out out",
        {
            "tanh": f"{V}Acc(0.5) * v * (1 + std::tanh(Acc(0.7978845608028654) * (v + Acc(0.044715) * v * v * v)));",
            "wide": f"{V}Acc(0.5 * v * (1 + std::tanh(0.7978845608028654 * (v + 0.044715 * v * v * v))));",
        },
        loops=SOME,
    ),
    Point(
        "bias and silu",
        task("F.silu(x + self.bias)", FLAT, setup=BIAS),
        "In x, In b, Out out",
        {
            "sigmoid": f"{SHIFTED}v / (1 + std::exp(-v));",
            "tanh": f"{SHIFTED}Acc(double(v) * (0.5 + 0.5 * std::tanh(0.5 * double(v))));",
        },
        loops=OTHERS,
    ),
    Point(
        "silu bf16",
        task("F.silu(x)", "torch.randn(131, 257).bfloat16()"),
        "In x, Out out",
        {
            "sigmoid": f"{V}v / (1 + std::exp(-v));",
        },
        "bfloat16",
        SOME,
    ),
    Point(
        "scaled f16",
        task("x * 2.5 + y", "torch.randn(67, 131).half(), torch.randn(131).half()", arguments="x, y"),
        "In x, In y, double scale, Out out",
        {
            "float": "return num(x.data[i]) * Acc(scale) + num(y.data[i % y.numel()]);",
        },
        "float16",
        SOME,
    ),
    Point(
        "mish",
        task("F.mish(x)", "torch.randn(20011)"),
        "In x, Out out",
        {
            "log1p": f"{V}v * std::tanh(v > 20 ? v : std::log1p(std::exp(v)));",
            "rational": "const double v = x.data[i], e = std::exp(std::min(v, 30.0)), p = e * (e + 2); "
            "return Acc(v * p / (p + 2));",
        },
        loops=SOME,
    ),
    Point(
        "gated",
        task("F.silu(x) * y", PAIR, arguments="x, y"),
        "In x, In y, Out out",
        {
            "sigmoid": "const Acc v = x.data[i]; return v / (1 + std::exp(-v)) * y.data[i];",
        },
        loops=OTHERS,
    ),
    Point(
        "gelu and residual",
        task("F.gelu(x + self.bias) + y", "torch.randn(67, 257), torch.randn(67, 257)", arguments="x, y", setup=BIAS),
        "In x, In y, In b, Out out",
        {
            "erf": f"{SHIFTED}v * Acc(0.5) * (1 + std::erf(v * {ROOT})) + y.data[i];",
        },
        loops=SOME,
    ),
    Point(
        "clamp",
        task("torch.clamp(x, -0.5, 0.7)", FLAT),
        "In x, double least, double most, Out out",
        {
            "comparisons": f"{V}v < Acc(least) ? Acc(least) : v > Acc(most) ? Acc(most) : v;",
        },
        loops=OTHERS,
    ),
    Point(
        "where",
        task("torch.where(m, x, y)", f"torch.rand(133, 157) > 0.5, {PAIR}", arguments="m, x, y"),
        "Mask m, In x, In y, Out out",
        {
            "choice": "return m.data[i] ? x.data[i] : y.data[i];",
            "bits": "const uint32_t all = -uint32_t(m.data[i]); uint32_t p, q; std::memcpy(&p, x.data + i, 4);\n"
            "    std::memcpy(&q, y.data + i, 4); p = (p & all) | (q & ~all); Acc v; std::memcpy(&v, &p, 4); return v;",
        },
        loops=SOME,
    ),
    Point(
        "mask",
        task("(x > y) & (x < 1.0)", PAIR, arguments="x, y"),
        "In x, In y, Truth out",
        {
            "both": "return x.data[i] > y.data[i] && x.data[i] < 1;",
        },
        loops=("plain", "omp", "blocks", "strided"),
    ),
)

# GELU and exp in vectors of eight, with full fp32 accuracy, beside a scalar tail and a scalar fallback.
VECTOR_EXP = """
#include <immintrin.h>
void run(In x, Out out) {
  const int64_t n = x.numel();
  each((n + 1023) / 1024, [&](int64_t block) {
    int64_t i = block * 1024;
    const int64_t last = std::min(i + 1024, n);
#if defined(__AVX2__) && defined(__FMA__)
    for (; i + 8 <= last; i += 8) {
      const __m256 v = _mm256_max_ps(_mm256_min_ps(_mm256_loadu_ps(x.data + i), _mm256_set1_ps(88.0f)),
          _mm256_set1_ps(-87.0f));
      const __m256 k = _mm256_round_ps(_mm256_mul_ps(v, _mm256_set1_ps(1.44269504f)),
          _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
      __m256 r = _mm256_fnmadd_ps(k, _mm256_set1_ps(0.693359375f), v);
      r = _mm256_fnmadd_ps(k, _mm256_set1_ps(-2.12194440e-4f), r);
      __m256 p = _mm256_set1_ps(1.0f / 5040);
      for (float c : {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f}) p = _mm256_fmadd_ps(p, r,
          _mm256_set1_ps(c));
      const __m256i power = _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(k), _mm256_set1_epi32(127)), 23);
      _mm256_storeu_ps(out.data + i, _mm256_mul_ps(p, _mm256_castsi256_ps(power)));
    }
#endif
    for (; i < last; ++i) out.data[i] = std::exp(std::min(std::max(x.data[i], -87.0f), 88.0f));
  });
}
"""
VECTOR_RELU = """
#include <immintrin.h>
void run(In x, In y, Out out) {
  const int64_t n = x.numel();
  each((n + 511) / 512, [&](int64_t block) {
    int64_t i = block * 512;
    const int64_t last = std::min(i + 512, n);
#if defined(__AVX512F__)
    for (; i < last; i += 16) {  // the tail under a mask
      const __mmask16 in = last - i >= 16 ? 0xffff : uint16_t((1u << (last - i)) - 1);
      const __m512 s = _mm512_add_ps(_mm512_maskz_loadu_ps(in, x.data + i), _mm512_maskz_loadu_ps(in, y.data + i));
      _mm512_mask_storeu_ps(out.data + i, in, _mm512_max_ps(s, _mm512_setzero_ps()));
    }
#endif
    for (; i < last; ++i) out.data[i] = std::max(x.data[i] + y.data[i], 0.0f);
  });
}
"""
STAGES = """
void run(In x, In b, Out out) {
  const int64_t n = x.numel(), width = b.numel();
  each(n / width, [&](int64_t row) {  // three stages over one row, each within the output
    T* to = out.data + row * width;
    for (int64_t j = 0; j < width; ++j) to[j] = x.data[row * width + j] + b.data[j];
    for (int64_t j = 0; j < width; ++j) to[j] = 1 / (1 + std::exp(-to[j]));
    for (int64_t j = 0; j < width; ++j) to[j] *= x.data[row * width + j] + b.data[j];
  });
}
"""
GUARDED = """
void run(In x, In b, Out out) {
  RK_CHECK(x.ndim == 2 && x.size(0) == 301 && x.size(1) == 257, "this kernel is for 301 x 257 only");
  each(301, [&](int64_t row) {
    for (int j = 0; j < 257; ++j) {
      const float v = x.data[row * 257 + j] + b.data[j];
      out.data[row * 257 + j] = v / (1 + std::exp(-v));
    }
  });
}
"""
ROTARY = """
void run(In x, In c, In s, Out out) {
  const int64_t half = c.size(-1), heads = x.size(2), steps = x.size(1);
  each(x.size(0) * steps * heads, [&](int64_t row) {
    const T* from = x.data + row * 2 * half;
    T* to = out.data + row * 2 * half;
    const int64_t t = row / heads % steps;
    for (int64_t j = 0; j < half; ++j) {
      const Acc cosine = c.data[t * half + j], sine = s.data[t * half + j];
      to[j] = from[j] * cosine - from[j + half] * sine;
      to[j + half] = from[j + half] * cosine + from[j] * sine;
    }
  });
}
"""


def kernels() -> Iterator[Honest]:
    """Yield all of this family."""
    for point in POINTS:
        count = "x.numel()"
        for form, element in point.forms.items():
            for loop in point.loops:
                body = f"{MASK}void run({point.parameters}) {{\n  const int64_t n = {count};\n"
                body += f"  auto element = [&](int64_t i) {{ {element} }};\n  {LOOPS[loop]}\n}}\n"
                text = kernel(body, schedule=SCHEDULED.get(loop, ""), dtype=point.dtype)
                yield Honest(f"{point.name}: {form}, {loop}", "pointwise", point.source, cpu(text))
    silu = next(p.source for p in POINTS if p.name == "bias and silu")
    rotary = task(
        "torch.cat([x[..., :32] * c - x[..., 32:] * s, x[..., 32:] * c + x[..., :32] * s], -1)",
        "torch.randn(3, 67, 5, 64), torch.randn(67, 1, 32), torch.randn(67, 1, 32)",
        arguments="x, c, s",
    )
    exp = task("torch.exp(torch.clamp(x, -87.0, 88.0))", FLAT)
    others = (
        ("polynomial exp", exp, VECTOR_EXP.replace("In x, Out", "In x, double, double, Out"), ()),
        ("vector add and relu", task("torch.relu(x + y)", PAIR, arguments="x, y"), VECTOR_RELU, ()),
        ("silu in stages", silu, STAGES, ()),
        ("silu of one shape", silu, GUARDED, ("shape-specialised",)),
        ("rotary", rotary, ROTARY, ()),
    )
    for name, source, body, labels in others:
        for schedule in ("omp-static", "counter", "serial"):
            yield Honest(f"{name}, {schedule}", "pointwise", source, cpu(kernel(body, schedule=schedule)), labels)
