"""Sums in every honest order: along one dimension, and of a whole tensor. Comes in: nothing. Goes out: `kernels()`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rag_kernels.eval.zoo.honest.source_pieces import LINES, Honest, cpu, kernel, spread
from rag_kernels.eval.zoo.problems import task

# Bodies of `Acc total(int64_t n, F term)`.
ORDERS = {
    "forward": "Acc s = 0; for (int64_t i = 0; i < n; ++i) s += term(i); return s;",
    "reversed": "Acc s = 0; for (int64_t i = n; i-- > 0;) s += term(i); return s;",
    "ends": "Acc s = 0; for (int64_t i = 0, j = n - 1; i <= j; ++i, --j) s += i == j ? term(i) : term(i) + term(j); "
    "return s;",
    "simd": "Acc s = 0;\n  #pragma omp simd reduction(+ : s)\n  for (int64_t i = 0; i < n; ++i) s += term(i);\n"
    "  return s;",
    "double": "Wide s = 0; for (int64_t i = 0; i < n; ++i) s += term(i); return Acc(s);",
    "lanes": """\
Acc lane[8] = {};
  for (int64_t i = 0; i < n; ++i) lane[i & 7] += term(i);
  return ((lane[0] + lane[1]) + (lane[2] + lane[3])) + ((lane[4] + lane[5]) + (lane[6] + lane[7]));""",
    "strided": """\
Acc s = 0;
  for (int64_t first = 0; first < 13; ++first) {
    Acc part = 0;
    for (int64_t i = first; i < n; i += 13) part += term(i);
    s += part;
  }
  return s;""",
    "blocked": """\
Acc s = 0;
  for (int64_t first = 0; first < n; first += 64) {
    Acc part = 0;
    for (int64_t i = first; i < std::min(first + 64, n); ++i) part += term(i);
    s += part;
  }
  return s;""",
    "split": """\
Acc part[5] = {};
  for (int64_t p = 0; p < 5; ++p)
    for (int64_t i = n * p / 5; i < n * (p + 1) / 5; ++i) part[p] += term(i);
  return part[0] + part[1] + part[2] + part[3] + part[4];""",
    "pairwise": """\
struct Half {
    static Acc of(int64_t first, int64_t last, F& term) {
      if (last - first <= 8) { Acc s = 0; for (int64_t i = first; i < last; ++i) s += term(i); return s; }
      const int64_t middle = first + (last - first) / 2;
      return of(first, middle, term) + of(middle, last, term);
    }
  };
  return Half::of(0, n, term);""",
    "cascade": """\
Acc level[64] = {};  // level[b] waits for its twin while bit b of the count is set
  for (int64_t i = 0; i < n; ++i) {
    Acc carry = term(i);
    int b = 0;
    for (; i >> b & 1; ++b) carry += level[b];
    level[b] = carry;
  }
  Acc s = 0;
  for (int b = 0; b < 63; ++b) if (n >> b & 1) s += level[b];
  return s;""",
    "kahan": """\
Acc s = 0, lost = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Acc v = term(i) - lost, next = s + v;
    lost = (next - s) - v;
    s = next;
  }
  return s;""",
    "neumaier": """\
Acc s = 0, lost = 0;
  for (int64_t i = 0; i < n; ++i) {
    const Acc v = term(i), next = s + v;
    lost += std::fabs(s) >= std::fabs(v) ? (s - next) + v : (v - next) + s;
    s = next;
  }
  return s + lost;""",
}
COMPENSATED = ("kahan", "neumaier")


@dataclass(frozen=True, slots=True)
class Along:
    """A sum along `dim`: the C++ of one term (a is the line of x, b of y, s its stride) and of the end."""

    name: str
    source: str
    term: str
    dtype: str = "float32"
    end: str = "s"
    tensors: str = "In x"

    def body(self, order: str) -> str:
        second = "\n    const T* b = y.data + l.start(k);" if "In y" in self.tensors else ""
        return f"""
template <class F> Acc total(int64_t n, F term) {{
  {ORDERS[order]}
}}
void run({self.tensors}, int64_t dim, Out out) {{
  const Lines l = lines_of(x, dim);
  each(l.count, [&](int64_t k) {{
    const T* a = x.data + l.start(k);{second}
    const Acc s = total(l.n, [&](int64_t i) {{ return {self.term}; }});
    put(out.data[k], {self.end});
  }});
}}
"""


X, Y = "num(a[i * l.inner])", "num(b[i * l.inner])"
ALONG = (
    Along("rows", task("x.sum(-1)", "torch.rand(257, 1021)"), X),
    Along("middle", task("torch.sum(x, dim=1)", "torch.randn(33, 129, 65)"), X),
    Along("tiny mean", task("x.mean(-1)", "torch.randn(40009, 3)"), X, end="s / Acc(l.n)"),
    Along("five-d", task("x.sum(2)", "torch.randn(3, 7, 61, 5, 13, dtype=torch.float64)"), X, "float64"),
    Along("bf16 rows", task("x.sum(-1)", "torch.randn(301, 515).bfloat16()"), X, "bfloat16"),
    Along("f16 mean", task("x.mean(1)", "torch.rand(19, 257, 31).half()"), X, "float16", "s / Acc(l.n)"),
    Along("integers", task("x.sum(-1)", "torch.randint(-1000, 1000, (131, 640))"), X, "int64"),
    Along(
        "dot",
        task("(x * y).sum(-1)", "torch.randn(251, 509), torch.randn(251, 509)", arguments="x, y"),
        f"{X} * {Y}",
        tensors="In x, In y",
    ),
    Along("absolute", task("x.abs().mean(0)", "torch.randn(600, 211)"), f"std::fabs({X})", end="s / Acc(l.n)"),
)

# Draws differ in scale: a sum of ten thousand numbers of one distribution is nearly a constant. The orders are over a
# term of the flat index i; those that add as threads arrive are not deterministic.
WHOLE = {
    "omp reduction": (
        "Acc s = 0;\n  #pragma omp parallel for reduction(+ : s)\n"
        "  for (int64_t i = 0; i < n; ++i) s += term(i);\n  return s;",
        True,
    ),
    "critical": (
        """\
Acc s = 0;
  #pragma omp parallel
  {
    Acc own = 0;
    #pragma omp for schedule(static, 512)
    for (int64_t i = 0; i < n; ++i) own += term(i);
    #pragma omp critical
    s += own;
  }
  return s;""",
        True,
    ),
    "atomic": (
        """\
Acc s = 0;
  #pragma omp parallel for schedule(dynamic, 8)
  for (int64_t block = 0; block < (n + 127) / 128; ++block) {
    Acc own = 0;
    for (int64_t i = block * 128; i < std::min(block * 128 + 128, n); ++i) own += term(i);
    #pragma omp atomic
    s += own;
  }
  return s;""",
        True,
    ),
    "partials": (
        """\
std::vector<Acc> part((n + 255) / 256);
  #pragma omp parallel for
  for (int64_t p = 0; p < int64_t(part.size()); ++p)
    for (int64_t i = p * 256; i < std::min(p * 256 + 256, n); ++i) part[p] += term(i);
  Acc s = 0;
  for (Acc p : part) s += p;
  return s;""",
        False,
    ),
    "static workspace": (
        """\
static std::vector<Acc> part;  // kept from call to call, and written anew in each
  part.assign((n + 199) / 200, 0);
  #pragma omp parallel for schedule(static, 1)
  for (int64_t p = 0; p < int64_t(part.size()); ++p)
    for (int64_t i = p * 200; i < std::min(p * 200 + 200, n); ++i) part[p] += term(i);
  for (size_t step = 1; step < part.size(); step *= 2)
    for (size_t p = 0; p + step < part.size(); p += 2 * step) part[p] += part[p + step];
  return part.empty() ? 0 : part[0];""",
        False,
    ),
    **{name: (ORDERS[name], False) for name in ("double", "pairwise", "kahan", "cascade")},
}
DIFFERENCE = "const Acc d = x.data[i] - y.data[i]; return"
PAIR = "torch.randn(89, 127) * (0.5 + 4 * torch.rand(())), torch.randn(89, 127)"
TOTALS = (
    (
        "sum of all",
        task("x.sum()", "torch.rand(97, 111) * (0.5 + 4 * torch.rand(()))"),
        "In x, Out out",
        "return x.data[i]",
        "s",
    ),
    ("mse", task("F.mse_loss(x, y)", PAIR, arguments="x, y"), "In x, In y, Out out", f"{DIFFERENCE} d * d", "s / n"),
    (
        "huber",
        task("F.huber_loss(x, y, delta=0.5)", PAIR, arguments="x, y"),
        "In x, In y, double delta, Out out",
        "const Acc d = std::fabs(x.data[i] - y.data[i]), e = Acc(delta);"
        " return d <= e ? Acc(0.5) * d * d : e * (d - Acc(0.5) * e)",
        "s / n",
    ),
    (
        "frobenius",
        task("torch.linalg.vector_norm(x)", "torch.randn(33, 17, 129, dtype=torch.float64)"),
        "In x, Out out",
        "return x.data[i] * x.data[i]",
        "std::sqrt(s)",
    ),
)


def kernels() -> Iterator[Honest]:
    """Yield all of this family."""
    for number, along in enumerate(ALONG):
        orders = [o for o in ORDERS if along.dtype != "int64" or o not in COMPENSATED]
        orders = orders if number in (0, 1, 4) else orders[number % 2 :: 2]
        for order, schedule in zip(orders, spread(len(orders), number), strict=True):
            source = kernel(along.body(order), schedule=schedule, dtype=along.dtype, pieces=[LINES])
            yield Honest(f"{along.name}: {order}, {schedule}", "sum along a dimension", along.source, cpu(source))
    for name, source, parameters, term, end in TOTALS:
        for order, (text, arrival) in WHOLE.items():
            body = f"template <class F> Acc total(int64_t n, F term) {{\n  {text}\n}}\nvoid run({parameters}) {{\n"
            body += f"  const int64_t n = x.numel();\n  const Acc s = total(n, [&](int64_t i) {{ {term}; }});\n"
            body += f"  out.data[0] = {end};\n}}\n"
            labels = ("degenerate problem", "nondeterministic") if arrival else ("degenerate problem",)
            dtype = "float64" if "float64" in source else "float32"
            yield Honest(f"{name}: {order}", "sum of everything", source, cpu(kernel(body, dtype=dtype)), labels)
