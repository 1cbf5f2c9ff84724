"""Normalizations: mean and variance by six routes, over groups of many forms. Goes out: `kernels()`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rag_kernels.eval.zoo.honest.source_pieces import LINES, Honest, cpu, kernel, spread
from rag_kernels.eval.zoo.problems import task

# Each computes `mean` and `square` (the sum of squared deviations) of a(0..n-1).
MOMENTS = {
    "two passes": """\
Acc mean = 0, square = 0;
    for (int64_t i = 0; i < n; ++i) mean += a(i);
    mean /= n;
    for (int64_t i = 0; i < n; ++i) square += (a(i) - mean) * (a(i) - mean);""",
    "two passes, corrected": """\
Acc mean = 0, square = 0, rest = 0;
    for (int64_t i = n; i-- > 0;) mean += a(i);
    mean /= n;
    for (int64_t i = 0; i < n; ++i) { const Acc d = a(i) - mean; square += d * d; rest += d; }
    square -= rest * rest / n;
    mean += rest / n;""",
    "double": """\
Wide first = 0, second = 0;
    for (int64_t i = 0; i < n; ++i) first += a(i);
    for (int64_t i = 0; i < n; ++i) second += (a(i) - first / n) * (a(i) - first / n);
    const Acc mean = Acc(first / n), square = Acc(second);""",
    "one pass in double": """\
Wide first = 0, second = 0;
    for (int64_t i = 0; i < n; ++i) { const Wide v = a(i); first += v; second += v * v; }
    const Acc mean = Acc(first / n), square = Acc(std::max<Wide>(second - first * first / n, 0));""",
    "Welford": """\
Acc mean = 0, square = 0;
    for (int64_t i = 0; i < n; ++i) {
      const Acc d = a(i) - mean;
      mean += d / Acc(i + 1);
      square += d * (a(i) - mean);
    }""",
    "Chan's merge of blocks": """\
Acc mean = 0, square = 0;
    for (int64_t first = 0; first < n; first += 48) {
      const int64_t size = std::min<int64_t>(48, n - first);
      Acc m = 0, s = 0;
      for (int64_t i = 0; i < size; ++i) m += a(first + i);
      m /= size;
      for (int64_t i = 0; i < size; ++i) s += (a(first + i) - m) * (a(first + i) - m);
      const Acc d = m - mean, all = Acc(first + size);
      mean += d * (size / all);
      square += s + d * d * (first * (size / all));
    }""",
    "shifted one pass": """\
const int64_t sample = std::min<int64_t>(n, 16);
    Acc base = 0, first = 0, second = 0;
    for (int64_t i = 0; i < sample; ++i) base += a(i) / sample;
    for (int64_t i = 0; i < n; ++i) { const Acc d = a(i) - base; first += d; second += d * d; }
    const Acc mean = base + first / n, square = std::max<Acc>(second - first * (first / n), 0);""",
    "one pass": """\
Acc first = 0, second = 0;
    for (int64_t i = 0; i < n; ++i) { first += a(i); second += a(i) * a(i); }
    const Acc mean = first / n, square = std::max<Acc>(second - first * (first / n), 0);""",
}
# What cancels: the mean of a row by a chain of float sums, where the row hardly varies; squares, far from zero.
FRAGILE = ("two passes", "Welford", "Chan's merge of blocks", "one pass", "shifted one pass")


@dataclass(frozen=True, slots=True)
class Norm:
    """A normalization: its groups (`count` of n elements, `at(k, i)` the place of one) and what is stored.

    `stored` may use v (the element), mean, scale, place and k; `scale` is the C++ of what multiplies.
    """

    name: str
    source: str
    parameters: str
    groups: str
    at: str = "k * n + i"
    stored: str = "(v - mean) * scale"
    scale: str = "1 / std::sqrt(square / n + Acc(eps))"
    dtype: str = "float32"

    def body(self, moments: str) -> str:
        return f"""
void run({self.parameters}) {{
  {self.groups}
  each(count, [&](int64_t k) {{
    auto at = [&](int64_t i) {{ return {self.at}; }};
    auto a = [&](int64_t i) {{ return num(x.data[at(i)]); }};
    {MOMENTS[moments]}
    const Acc scale = {self.scale};
    for (int64_t i = 0; i < n; ++i) {{
      const int64_t place = at(i);
      const Acc v = num(x.data[place]);
      put(out.data[place], {self.stored});
    }}
  }});
}}
"""


ROWS = "const int64_t n = x.size(-1), count = x.numel() / n;"
PLANES = "const int64_t plane = x.size(2) * x.size(3), channels = x.size(1);"
AFFINE = "self.weight = nn.Parameter(torch.ones({0}))\nself.bias = nn.Parameter(torch.zeros({0}))"
CHANNEL = "(v - mean) * scale * num(w.data[place / plane % channels]) + num(b.data[place / plane % channels])"
IMAGE = "torch.randn(5, 24, 15, 17)"
NORMS = (
    Norm(
        "layer norm",
        task("F.layer_norm(x, (768,), self.weight, self.bias)", "torch.randn(129, 768)", setup=AFFINE.format(768)),
        "In x, In w, In b, double eps, Out out",
        ROWS,
        stored="(v - mean) * scale * num(w.data[i]) + num(b.data[i])",
    ),
    Norm(
        "layer norm of two dimensions",
        task("F.layer_norm(x, (7, 33))", "torch.rand(61, 5, 7, 33)"),
        "In x, double eps, Out out",
        "const int64_t n = x.size(2) * x.size(3), count = x.size(0) * x.size(1);",
    ),
    Norm(
        "layer norm of five",
        task("F.layer_norm(x, (5,), self.weight, self.bias)", "torch.randn(7001, 5)", setup=AFFINE.format(5)),
        "In x, In w, In b, double eps, Out out",
        ROWS,
        stored="(v - mean) * (scale * num(w.data[i])) + num(b.data[i])",
    ),
    Norm(
        "layer norm bf16",
        task("F.layer_norm(x, (301,))", "torch.randn(67, 301).bfloat16()"),
        "In x, double eps, Out out",
        ROWS,
        dtype="bfloat16",
    ),
    Norm(
        "layer norm fp64",
        task("F.layer_norm(x, (129,))", "torch.randn(3, 61, 129, dtype=torch.float64)"),
        "In x, double eps, Out out",
        ROWS,
        dtype="float64",
    ),
    Norm(
        "group norm",
        task("self.norm(x)", IMAGE, setup="self.norm = nn.GroupNorm(6, 24)"),
        "In x, In w, In b, int64_t groups, double eps, Out out",
        PLANES + "\n  const int64_t n = channels / groups * plane, count = x.size(0) * groups;",
        stored=CHANNEL,
    ),
    Norm(
        "instance norm",
        task("F.instance_norm(x)", IMAGE),
        "In x, double eps, Out out",
        PLANES + "\n  const int64_t n = plane, count = x.size(0) * channels;",
    ),
    Norm(
        "batch norm in training",
        task("self.norm(x)", IMAGE, setup="self.norm = nn.BatchNorm2d(24)"),
        "In x, In w, In b, double eps, Out out",
        PLANES + "\n  const int64_t n = x.size(0) * plane, count = channels;",
        at="(i / plane * channels + k) * plane + i % plane",
        stored=CHANNEL,
    ),
    # Without an epsilon, squares of tiny numbers vanish.
    Norm(
        "standardized columns",
        task("(x - x.mean(0, keepdim=True)) / x.std(0, keepdim=True)", "torch.randn(301, 67)"),
        "In x, int64_t, Out out",
        "const int64_t n = x.size(0), count = x.size(1);",
        at="i * count + k",
        scale="1 / std::sqrt(square / (n - 1))",
    ),
)
VARIANCE = """
void run(In x, int64_t dim, Out out) {{
  const Lines l = lines_of(x, dim);
  const int64_t n = l.n;
  each(l.count, [&](int64_t k) {{
    auto a = [&](int64_t i) {{ return num(x.data[l.start(k) + i * l.inner]); }};
    {moments}
    put(out.data[k], std::sqrt(square / (n - 1)) + 0 * mean);
  }});
}}
"""
# Normalizations that need only a sum of squares, or none: the sum in each order.
SQUARES = {
    "float": "Acc square = 0; for (int64_t i = 0; i < n; ++i) square += a(i) * a(i);",
    "double": "Wide wide = 0; for (int64_t i = 0; i < n; ++i) wide += Wide(a(i)) * a(i); const Acc square = Acc(wide);",
    "lanes": "Acc part[4] = {}; for (int64_t i = 0; i < n; ++i) part[i % 4] += a(i) * a(i);\n"
    "    const Acc square = (part[0] + part[1]) + (part[2] + part[3]);",
    "simd": "Acc square = 0;\n    #pragma omp simd reduction(+ : square)\n"
    "    for (int64_t i = 0; i < n; ++i) square += a(i) * a(i);",
}
RMS = Norm(
    "rms norm",
    task(
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight",
        "torch.randn(257, 511)",
        setup="self.weight = nn.Parameter(torch.ones(511))",
    ),
    "In x, In w, int64_t, double eps, Out out",
    ROWS,
    stored="v * scale * num(w.data[i])",
)
UNIT = Norm(
    "unit rows",
    task("F.normalize(x, dim=-1)", "torch.randn(5, 67, 300)"),
    "In x, int64_t, double least, Out out",
    ROWS,
    stored="v * scale",
    scale="1 / std::max(std::sqrt(square), Acc(least))",
)
RUNNING = """
void run(In x, In w, In b, In mean, In variance, double eps, Out out) {{
  const int64_t plane = x.size(2) * x.size(3), channels = x.size(1);
  each(x.size(0) * channels, [&](int64_t k) {{
    const int64_t c = k % channels;
    {way}
  }});
}}
"""
FOLDS = {
    "folded": "const Acc scale = w.data[c] / std::sqrt(variance.data[c] + Acc(eps)), "
    "shift = b.data[c] - mean.data[c] * scale;\n"
    "    for (int64_t i = k * plane; i < (k + 1) * plane; ++i) out.data[i] = x.data[i] * scale + shift;",
    "as written": "const Acc deviation = std::sqrt(variance.data[c] + Acc(eps));\n    for (int64_t i = k * plane; i < "
    "(k + 1) * plane; ++i) out.data[i] = (x.data[i] - mean.data[c]) / deviation * w.data[c] + b.data[c];",
}


def kernels() -> Iterator[Honest]:
    """Yield all of this family."""
    for number, norm in enumerate(NORMS):
        for moments, schedule in zip(MOMENTS, spread(len(MOMENTS), number), strict=True):
            text = kernel(norm.body(moments), schedule=schedule, dtype=norm.dtype)
            labels = ("fragile",) if moments in FRAGILE or norm is NORMS[-1] else ()
            yield Honest(f"{norm.name}: {moments}, {schedule}", "normalization", norm.source, cpu(text), labels)
    deviation = task("x.std(1)", "torch.randn(67, 129, 9)")
    for moments, schedule in zip(MOMENTS, spread(len(MOMENTS), 3), strict=True):
        text = kernel(VARIANCE.format(moments=MOMENTS[moments]), schedule=schedule, pieces=[LINES])
        name = f"deviation: {moments}, {schedule}"  # without an epsilon, squares of tiny numbers vanish
        yield Honest(name, "variance", deviation, cpu(text), ("fragile",))
    for number, norm in enumerate((RMS, UNIT)):
        for (way, squares), schedule in zip(SQUARES.items(), spread(len(SQUARES), 5 * number), strict=True):
            body = norm.body("one pass").replace(MOMENTS["one pass"], squares)
            yield Honest(
                f"{norm.name}: {way}, {schedule}", "normalization", norm.source, cpu(kernel(body, schedule=schedule))
            )
    running = task(
        "self.norm(x)",
        IMAGE,
        setup="self.norm = nn.BatchNorm2d(24).eval()\n"
        "self.norm.running_mean.normal_()\nself.norm.running_var.uniform_(0.5, 2)",
    )
    for way, text in FOLDS.items():
        for schedule in ("serial", "omp-static"):
            source = kernel(RUNNING.format(way=text), schedule=schedule)
            yield Honest(f"running batch norm: {way}, {schedule}", "normalization", running, cpu(source))
