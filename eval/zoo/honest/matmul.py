"""Matrix products by loops of every order, tiles, split sums, vectors and tricks. Goes out: `kernels()`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rag_kernels.eval.zoo.honest.source_pieces import Honest, cpu, kernel, spread
from rag_kernels.eval.zoo.problems import task

# Bodies of `void product(const T* a, B b, Acc* c, int64_t m, int64_t n, int64_t depth)`: c = a @ b, where b(k, j) reads
# the right side and c is m by n, to be overwritten. `each` spreads rows (or panels) over threads.
DOT = (
    "Acc s = 0;\n      for (int64_t k = 0; k < depth; ++k) s += num(a[i * depth + k]) * b(k, j);\n"
    "      c[i * n + j] = s;"
)
PRODUCTS = {
    "dots": f"""\
each(m, [&](int64_t i) {{
    for (int64_t j = 0; j < n; ++j) {{
      {DOT}
    }}
  }});""",
    "dots, backwards": """\
each(m, [&](int64_t i) {
    for (int64_t j = n; j-- > 0;) {
      Acc s = 0;
      for (int64_t k = depth; k-- > 0;) s += num(a[i * depth + k]) * b(k, j);
      c[i * n + j] = s;
    }
  });""",
    "rows": """\
each(m, [&](int64_t i) {
    Acc* row = c + i * n;
    std::fill(row, row + n, Acc(0));
    for (int64_t k = 0; k < depth; ++k) {
      const Acc v = num(a[i * depth + k]);
      for (int64_t j = 0; j < n; ++j) row[j] += v * b(k, j);
    }
  });""",
    "collapsed": f"""\
#pragma omp parallel for collapse(2)
  for (int64_t i = 0; i < m; ++i)
    for (int64_t j = 0; j < n; ++j) {{
      {DOT}
    }}""",
    "tiles": """\
constexpr int64_t S = 24;
  each((m + S - 1) / S, [&](int64_t tile) {
    const int64_t top = tile * S, bottom = std::min(top + S, m);
    std::fill(c + top * n, c + bottom * n, Acc(0));
    for (int64_t k0 = 0; k0 < depth; k0 += S)
      for (int64_t j0 = 0; j0 < n; j0 += S)
        for (int64_t i = top; i < bottom; ++i)
          for (int64_t k = k0; k < std::min(k0 + S, depth); ++k)
            for (int64_t j = j0; j < std::min(j0 + S, n); ++j) c[i * n + j] += num(a[i * depth + k]) * b(k, j);
  });""",
    "registers": """\
each((m + 3) / 4, [&](int64_t panel) {
    const int64_t top = panel * 4, height = std::min<int64_t>(4, m - top);
    for (int64_t j0 = 0; j0 < n; j0 += 8) {
      const int64_t width = std::min<int64_t>(8, n - j0);
      Acc s[4][8] = {};
      for (int64_t k = 0; k < depth; ++k)
        for (int64_t i = 0; i < height; ++i)
          for (int64_t j = 0; j < width; ++j) s[i][j] += num(a[(top + i) * depth + k]) * b(k, j0 + j);
      for (int64_t i = 0; i < height; ++i)
        for (int64_t j = 0; j < width; ++j) c[(top + i) * n + j0 + j] = s[i][j];
    }
  });""",
    "split depth": """\
constexpr int64_t PARTS = 4;
  std::vector<Acc> part(PARTS * m * n, Acc(0));
  each(PARTS, [&](int64_t p) {
    for (int64_t i = 0; i < m; ++i)
      for (int64_t k = depth * p / PARTS; k < depth * (p + 1) / PARTS; ++k)
        for (int64_t j = 0; j < n; ++j) part[(p * m + i) * n + j] += num(a[i * depth + k]) * b(k, j);
  });
  for (int64_t i = 0; i < m * n; ++i) c[i] = (part[i] + part[m * n + i]) + (part[2 * m * n + i] + part[3 * m * n +
      i]);""",
    "transposed copy": """\
std::vector<Acc> turned(n * depth);  // made anew in every call
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t j = 0; j < n; ++j) turned[j * depth + k] = b(k, j);
  each(m, [&](int64_t i) {
    for (int64_t j = 0; j < n; ++j) {
      Acc s = 0;
      #pragma omp simd reduction(+ : s)
      for (int64_t k = 0; k < depth; ++k) s += num(a[i * depth + k]) * turned[j * depth + k];
      c[i * n + j] = s;
    }
  });""",
    "static workspace": """\
static std::vector<Acc> packed;  // kept from call to call, and packed anew in each
  packed.resize(n * depth);
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t j = 0; j < n; ++j) packed[k * n + j] = b(k, j);
  each(m, [&](int64_t i) {
    for (int64_t j = 0; j < n; ++j) c[i * n + j] = 0;
    for (int64_t k = 0; k < depth; ++k)
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += num(a[i * depth + k]) * packed[k * n + j];
  });""",
    "outer products": """\
std::fill(c, c + m * n, Acc(0));
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) c[i * n + j] += num(a[i * depth + k]) * b(k, j);""",
    "double": """\
each(m, [&](int64_t i) {
    for (int64_t j = 0; j < n; ++j) {
      Wide s = 0;
      for (int64_t k = 0; k < depth; ++k) s += Wide(num(a[i * depth + k])) * b(k, j);
      c[i * n + j] = Acc(s);
    }
  });""",
    "Kahan": """\
each(m, [&](int64_t i) {
    for (int64_t j = 0; j < n; ++j) {
      Acc s = 0, lost = 0;
      for (int64_t k = 0; k < depth; ++k) {
        const Acc v = num(a[i * depth + k]) * b(k, j) - lost, next = s + v;
        lost = (next - s) - v;
        s = next;
      }
      c[i * n + j] = s;
    }
  });""",
}
# Only in fp32: vectors by hand, numbers split into pieces, and Strassen's seven products.
SPECIAL = {
    "vectors": """\
each(m, [&](int64_t i) {
    int64_t j = 0;
#if defined(__AVX512F__)
    for (; j + 16 <= n; j += 16) {
      __m512 s = _mm512_setzero_ps();
      for (int64_t k = 0; k < depth; ++k)
        s = _mm512_fmadd_ps(_mm512_set1_ps(a[i * depth + k]), right.load512(k, j), s);
      _mm512_storeu_ps(c + i * n + j, s);
    }
#endif
#if defined(__AVX2__) && defined(__FMA__)
    for (; j + 8 <= n; j += 8) {
      __m256 s = _mm256_setzero_ps();
      for (int64_t k = 0; k < depth; ++k)
        s = _mm256_fmadd_ps(_mm256_set1_ps(a[i * depth + k]), right.load256(k, j), s);
      _mm256_storeu_ps(c + i * n + j, s);
    }
#endif
    for (; j < n; ++j) {
      float s = 0;
      for (int64_t k = 0; k < depth; ++k) s += a[i * depth + k] * b(k, j);
      c[i * n + j] = s;
    }
  });""",
    "three bf16 terms": """\
// x = x0 + x1 + x2 exactly, each with eight bits: six products of bf16 numbers are as good as one of floats.
  auto split = [](float x, float* term) {
    for (int t = 0; t < 3; ++t) {
      uint32_t u; std::memcpy(&u, &x, 4);
      u &= 0xffff0000u;
      std::memcpy(term + t, &u, 4);
      x -= term[t];
    }
  };
  std::vector<float> left(m * depth * 3), turned(n * depth * 3);
  for (int64_t i = 0; i < m * depth; ++i) split(a[i], &left[i * 3]);
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t j = 0; j < n; ++j) split(b(k, j), &turned[(j * depth + k) * 3]);
  each(m, [&](int64_t i) {
    for (int64_t j = 0; j < n; ++j) {
      float s[3] = {};  // by magnitude, so that the small products are not lost
      for (int64_t k = 0; k < depth; ++k) {
        const float* p = &left[(i * depth + k) * 3];
        const float* q = &turned[(j * depth + k) * 3];
        s[0] += p[0] * q[0];
        s[1] += p[0] * q[1] + p[1] * q[0];
        s[2] += p[0] * q[2] + p[1] * q[1] + p[2] * q[0];
      }
      c[i * n + j] = s[0] + (s[1] + s[2]);
    }
  });""",
    "Strassen": """\
// One level: seven products of half the size, with zeros at odd edges.
  const int64_t hm = (m + 1) / 2, hk = (depth + 1) / 2, hn = (n + 1) / 2;
  auto at_left = [&](int64_t i, int64_t k) { return i < m && k < depth ? a[i * depth + k] : 0.0f; };
  auto at_right = [&](int64_t k, int64_t j) { return k < depth && j < n ? b(k, j) : 0.0f; };
  std::vector<float> product(7 * hm * hn);
  each(7, [&](int64_t p) {
    std::vector<float> l(hm * hk), r(hk * hn);
    for (int64_t i = 0; i < hm; ++i)
      for (int64_t k = 0; k < hk; ++k) {
        const float q[4] = {at_left(i, k), at_left(i, k + hk), at_left(i + hm, k), at_left(i + hm, k + hk)};
        const float sums[7] = {q[0] + q[3], q[2] + q[3], q[0], q[3], q[0] + q[1], q[2] - q[0], q[1] - q[3]};
        l[i * hk + k] = sums[p];
      }
    for (int64_t k = 0; k < hk; ++k)
      for (int64_t j = 0; j < hn; ++j) {
        const float q[4] = {at_right(k, j), at_right(k, j + hn), at_right(k + hk, j), at_right(k + hk, j + hn)};
        const float sums[7] = {q[0] + q[3], q[0], q[1] - q[3], q[2] - q[0], q[3], q[0] + q[1], q[2] + q[3]};
        r[k * hn + j] = sums[p];
      }
    float* to = &product[p * hm * hn];
    for (int64_t i = 0; i < hm; ++i)
      for (int64_t k = 0; k < hk; ++k)
        for (int64_t j = 0; j < hn; ++j) to[i * hn + j] += l[i * hk + k] * r[k * hn + j];
  });
  for (int64_t i = 0; i < hm; ++i)
    for (int64_t j = 0; j < hn; ++j) {
      float q[7];
      for (int p = 0; p < 7; ++p) q[p] = product[(p * hm + i) * hn + j];
      c[i * n + j] = q[0] + q[3] - q[4] + q[6];
      if (j + hn < n) c[i * n + j + hn] = q[2] + q[4];
      if (i + hm < m) c[(i + hm) * n + j] = q[1] + q[3];
      if (i + hm < m && j + hn < n) c[(i + hm) * n + j + hn] = q[0] - q[1] + q[2] + q[5];
    }""",
    "atomics": """\
std::fill(c, c + m * n, Acc(0));
  #pragma omp parallel for schedule(dynamic, 16)
  for (int64_t k = 0; k < depth; ++k)
    for (int64_t i = 0; i < m; ++i) {
      const Acc v = a[i * depth + k];
      for (int64_t j = 0; j < n; ++j) {
        #pragma omp atomic
        c[i * n + j] += v * b(k, j);
      }
    }""",
}
FRAGILE = ("Strassen",)  # its error is relative to the largest block, not to each element


@dataclass(frozen=True, slots=True)
class Product:
    """A product and what surrounds it. `right` is B(k, j); `end` is stored for the sum s at column j."""

    name: str
    source: str
    parameters: str
    sizes: str  # C++ that declares batches, m, n, depth and the strides of a batch: left, right_step
    right: str = "y.data[k * n + j]"
    end: str = "s"
    dtype: str = "float32"

    def body(self, product: str) -> str:
        return f"""
#include <immintrin.h>
template <class B> struct Right {{  // vectors of the right side, gathered where it is transposed
  B b;
#if defined(__AVX512F__)
  __m512 load512(int64_t k, int64_t j) const {{ float v[16]; for (int i = 0; i < 16; ++i) v[i] = b(k, j + i);
      return _mm512_loadu_ps(v); }}
#endif
#if defined(__AVX2__)
  __m256 load256(int64_t k, int64_t j) const {{ float v[8]; for (int i = 0; i < 8; ++i) v[i] = b(k, j + i);
      return _mm256_loadu_ps(v); }}
#endif
}};
template <class B> void product(const T* a, B b, Acc* c, int64_t m, int64_t n, int64_t depth) {{
  const Right<B> right{{b}};
  (void)right;
  {product}
}}
void run({self.parameters}) {{
  {self.sizes}
  std::vector<Acc> c(m * n);
  for (int64_t batch = 0; batch < batches; ++batch) {{
    const int64_t base = batch * n * depth;
    product(x.data + batch * m * depth, [&](int64_t k, int64_t j) {{ return num({self.right});
        }}, c.data(), m, n, depth);
    for (int64_t i = 0; i < m; ++i)
      for (int64_t j = 0; j < n; ++j) {{
        const Acc s = c[i * n + j];
        put(out.data[(batch * m + i) * n + j], {self.end});
      }}
  }}
}}
"""


PLAIN = "const int64_t batches = 1, m = x.size(0), depth = x.size(1), n = y.size(1);"
BATCHED = "const int64_t batches = x.size(0), m = x.size(1), depth = x.size(2), n = y.size(2);"
LINEAR = "const int64_t batches = 1, depth = x.size(-1), m = x.numel() / depth, n = w.size(0);"
WEIGHTS = "w.data[base + j * depth + k]"


def two(left: str, right: str, cast: str = "") -> str:
    return task("x @ y", f"torch.randn({left}){cast}, torch.randn({right}){cast}", arguments="x, y")


def linear(act: str, shape: str, inputs: int, outputs: int) -> str:
    return task(act, f"torch.randn({shape})", setup=f"self.linear = nn.Linear({inputs}, {outputs})")


RELU = "std::max(s + w2.data[j], Acc(0))"
PRODUCTS_TO_JUDGE = (
    Product("matmul", two("129, 257", "257, 65"), "In x, In y, Out out", PLAIN),
    Product(
        "linear and relu",
        linear("torch.relu(self.linear(x))", "67, 300", 300, 129),
        "In x, In w, In w2, Out out",
        LINEAR,
        WEIGHTS,
        RELU,
    ),
    Product("batched", two("7, 45, 61", "7, 61, 53"), "In x, In y, Out out", BATCHED, "y.data[base + k * n + j]"),
    Product(
        "linear of three dimensions, scaled",
        linear("self.linear(x) * 0.5", "3, 31, 129", 129, 61),
        "In x, In w, In w2, double factor, Out out",
        LINEAR,
        WEIGHTS,
        "(s + w2.data[j]) * Acc(factor)",
    ),
    Product("bf16 matmul", two("65, 129", "129, 67", ".bfloat16()"), "In x, In y, Out out", PLAIN, dtype="bfloat16"),
    Product("fp64 matmul", two("61, 129", "129, 67", ".double()"), "In x, In y, Out out", PLAIN, dtype="float64"),
    Product(
        "tall matmul and relu",
        task("torch.relu(x @ y)", "torch.randn(4001, 5), torch.randn(5, 3)", arguments="x, y"),
        "In x, In y, Out out",
        PLAIN,
        end="std::max(s, Acc(0))",
    ),
)


def kernels() -> Iterator[Honest]:
    """Yield all of this family."""
    for number, problem in enumerate(PRODUCTS_TO_JUDGE):
        names = list(PRODUCTS) if number < 2 else list(PRODUCTS)[number % 2 :: 2]
        for way, schedule in zip(names, spread(len(names), number), strict=True):
            text = kernel(problem.body(PRODUCTS[way]), schedule=schedule, dtype=problem.dtype)
            yield Honest(f"{problem.name}: {way}, {schedule}", "matrix product", problem.source, cpu(text))
        if problem.dtype != "float32":
            continue
        for way, product in SPECIAL.items():
            text = kernel(problem.body(product), schedule="omp-static", dtype=problem.dtype)
            labels = ("nondeterministic",) if way == "atomics" else ("fragile",) if way in FRAGILE else ()
            yield Honest(f"{problem.name}: {way}", "matrix product", problem.source, cpu(text), labels)
