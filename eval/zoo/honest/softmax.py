"""Softmax and its relatives by every honest route. Comes in: nothing. Goes out: `kernels()`."""

from __future__ import annotations

from collections.abc import Iterator

from rag_kernels.eval.zoo.honest.source_pieces import LINES, Honest, cpu, kernel, spread
from rag_kernels.eval.zoo.problems import task

# Each computes, for the line a(0..n-1), `top` and `total` with total = sum exp(a(i) - top).
TOTALS = {
    "three passes": """\
Acc top = a(0), total = 0;
    for (int64_t i = 1; i < n; ++i) top = std::max(top, a(i));
    for (int64_t i = 0; i < n; ++i) total += std::exp(a(i) - top);""",
    "online": """\
Acc top = -INFINITY, total = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Acc v = a(i);
      if (v > top) { total = total * std::exp(top - v) + 1; top = v; } else total += std::exp(v - top);
    }""",
    "online in blocks": """\
Acc top = -INFINITY, total = 0;
    for (int64_t first = 0; first < n; first += 32) {
      const int64_t last = std::min(first + 32, n);
      Acc best = top, part = 0;
      for (int64_t i = first; i < last; ++i) best = std::max(best, a(i));
      for (int64_t i = first; i < last; ++i) part += std::exp(a(i) - best);
      total = total * std::exp(top - best) + part;
      top = best;
    }""",
    "merged halves": """\
Acc tops[2], totals[2];
    for (int h = 0; h < 2; ++h) {  // each half on its own, then one merge
      tops[h] = -INFINITY; totals[h] = 0;
      for (int64_t i = h ? n / 2 : 0; i < (h ? n : n / 2); ++i) tops[h] = std::max(tops[h], a(i));
      for (int64_t i = h ? n / 2 : 0; i < (h ? n : n / 2); ++i) totals[h] += std::exp(a(i) - tops[h]);
    }
    const Acc top = std::max(tops[0], tops[1]);
    const Acc total = (n > 1 ? totals[0] * std::exp(tops[0] - top) : 0) + totals[1] * std::exp(tops[1] - top);""",
    "double": """\
Wide sum = 0;
    Acc top = a(n - 1);
    for (int64_t i = n - 1; i-- > 0;) top = std::max(top, a(i));
    for (int64_t i = 0; i < n; ++i) sum += std::exp(Wide(a(i)) - Wide(top));
    const Acc total = Acc(sum);""",
    "omp simd": """\
Acc top = a(0), total = 0;
    #pragma omp simd reduction(max : top)
    for (int64_t i = 0; i < n; ++i) top = a(i) > top ? a(i) : top;
    #pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < n; ++i) total += std::exp(a(i) - top);""",
    "polynomial": """\
Acc top = a(0), total = 0;
    for (int64_t i = 1; i < n; ++i) top = std::max(top, a(i));
    for (int64_t i = 0; i < n; ++i) total += quick_exp(a(i) - top);""",
}
# What is stored at place i.
ENDS = {
    "softmax": {
        "divide": "std::exp(a(i) - top) / total",
        "reciprocal": "std::exp(a(i) - top) * (1 / total)",
    },
    "log_softmax": {
        "two subtractions": "(a(i) - top) - std::log(total)",
        "wide": "Acc(Wide(a(i)) - Wide(top) - std::log(Wide(total)))",
    },
}
# exp by range reduction and a polynomial of degree 7: as exact as libm's float version to about an ulp.
QUICK_EXP = """\
inline float quick_exp(float x) {
  if (!(x > -87.0f)) return std::exp(x);
  const float k = std::nearbyint(x * 1.44269504f);
  const float r = std::fma(k, 1.42860677e-6f, std::fma(k, -0.693148613f, x));
  float p = 1.0f / 5040;
  const float coefficient[] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 0.5f, 1.0f, 1.0f};
  for (float c : coefficient) p = std::fma(p, r, c);
  return std::ldexp(p, int(k));
}
inline double quick_exp(double x) { return std::exp(x); }
"""
STORED = """
void run(In x, int64_t dim, Out out) {{
  const Lines l = lines_of(x, dim);
  each(l.count, [&](int64_t k) {{
    const T* line = x.data + l.start(k);
    T* to = out.data + l.start(k);
    const int64_t n = l.n;
    auto a = [&](int64_t i) {{ return num(line[i * l.inner]); }};
    {total}
    for (int64_t i = 0; i < n; ++i) put(to[i * l.inner], {end});
  }});
}}
"""
# exp is written to the output first and rescaled there: the output serves as scratch memory.
SCRATCH = STORED.replace(
    "{total}\n    for (int64_t i = 0; i < n; ++i) put(to[i * l.inner], {end});",
    "T top = line[0], total = 0;\n    for (int64_t i = 0; i < n; ++i) top = std::max(top, line[i * l.inner]);\n"
    "    for (int64_t i = 0; i < n; ++i) total += to[i * l.inner] = std::exp(a(i) - top);\n"
    "    for (int64_t i = 0; i < n; ++i) to[i * l.inner] /= total;",
)
SINGLE = """
void run(In x, int64_t dim, Out out) {{
  const Lines l = lines_of(x, dim);
  each(l.count, [&](int64_t k) {{
    const T* line = x.data + l.start(k);
    const int64_t n = l.n;
    auto a = [&](int64_t i) {{ return num(line[i * l.inner]); }};
    {total}
    put(out.data[k], top + std::log(total));
  }});
}}
"""
LOSS = """
void run(In x, rk::Tensor<const int64_t> y, Out out) {{
  const int64_t n = x.size(1), rows = x.size(0);
  std::vector<Acc> loss(rows);
  each(rows, [&](int64_t k) {{
    auto a = [&](int64_t i) {{ return num(x.data[k * n + i]); }};
    {total}
    loss[k] = std::log(total) - (a(y.data[k]) - top);
  }});
  Wide sum = 0;
  for (Acc one : loss) sum += one;
  put(out.data[0], Acc(sum / rows));
}}
"""
STORING = (
    ("softmax", "rows", task("torch.softmax(x, dim=-1)", "torch.randn(257, 1000)"), "float32"),
    ("softmax", "middle", task("torch.softmax(x, dim=1)", "torch.randn(16, 37, 53)"), "float32"),
    ("softmax", "three columns", task("torch.softmax(x, dim=-1)", "torch.rand(9001, 3)"), "float32"),
    ("softmax", "fp64", task("torch.softmax(x, dim=-1)", "torch.randn(4, 8, 31, 65, dtype=torch.float64)"), "float64"),
    ("softmax", "bf16", task("torch.softmax(x, dim=-1)", "torch.randn(131, 301).bfloat16()"), "bfloat16"),
    ("log_softmax", "rows", task("torch.log_softmax(x, dim=-1)", "torch.randn(131, 517)"), "float32"),
    ("log_softmax", "first", task("torch.log_softmax(x, dim=0)", "torch.randn(67, 3, 5, 31)"), "float32"),
)
SINGLES = (
    ("logsumexp", task("torch.logsumexp(x, dim=-1)", "torch.randn(257, 511)"), SINGLE),
    ("logsumexp of columns", task("torch.logsumexp(x, dim=0)", "torch.randn(301, 129)"), SINGLE),
    (
        "cross-entropy",
        task(
            "F.cross_entropy(x, y)",
            arguments="x, y",
            inputs=("torch.randn(300, 517) * (0.5 + 4 * torch.rand(())), torch.randint(0, 517, (300,))"),
        ),
        LOSS,
    ),
)


def kernels() -> Iterator[Honest]:
    """Yield all of this family."""
    for number, (operator, shape, source, dtype) in enumerate(STORING):
        ends = list(ENDS[operator].items())
        for turn, (route, schedule) in enumerate(zip(TOTALS, spread(len(TOTALS), number), strict=True)):
            name, end = ends[turn % 2]
            body = STORED.format(total=TOTALS[route], end=end)
            text = kernel(body, schedule=schedule, dtype=dtype, pieces=[LINES, QUICK_EXP])
            yield Honest(f"{operator} of {shape}: {route}, {name}, {schedule}", "softmax", source, cpu(text))
        if operator == "softmax" and dtype != "bfloat16":
            text = kernel(SCRATCH.format(), schedule="omp-static", dtype=dtype, pieces=[LINES, f"// {shape}\n"])
            yield Honest(f"softmax of {shape}: output as scratch", "softmax", source, cpu(text))
    for number, (name, source, frame) in enumerate(SINGLES):
        for route, schedule in zip(TOTALS, spread(len(TOTALS), number + 5), strict=True):
            body = frame.format(total=TOTALS[route])
            labels = ("degenerate problem",) if frame is LOSS else ()
            text = kernel(body, schedule=schedule, pieces=[LINES, QUICK_EXP])
            yield Honest(f"{name}: {route}, {schedule}", "log-sum-exp", source, cpu(text), labels)
