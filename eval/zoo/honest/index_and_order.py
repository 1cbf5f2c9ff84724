"""Indices, orders and scans: gather, scatter, argmax, top-k, sort, cumulative sums. Goes out: `kernels()`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rag_kernels.eval.zoo.honest.source_pieces import LINES, Honest, cpu, kernel, spread
from rag_kernels.eval.zoo.problems import task

INDEX = (
    "typedef rk::Tensor<const int64_t> Places;\ntypedef rk::Tensor<int64_t> Found;\ntypedef rk::Tensor<bool> Truth;\n"
)


@dataclass(frozen=True, slots=True)
class Group:
    """A problem, the parameters of a kernel for it, and the C++ of several ways; what each may be labelled."""

    name: str
    source: str
    parameters: str
    ways: dict[str, str]
    dtype: str = "float32"
    schedules: int = 2
    labels: tuple[str, ...] = ()
    only_labelled: Sequence[str] = ()


def per_line(work: str, dim: str = "dim") -> str:
    """Do `work` for each line k of x along `dim`: a(i) is its element i, n their number."""
    return f"""\
const Lines l = lines_of(x, {dim});
  const int64_t n = l.n;
  each(l.count, [&](int64_t k) {{
    auto a = [&](int64_t i) {{ return x.data[l.start(k) + i * l.inner]; }};
    {work}
  }});"""


# The first of the largest, as PyTorch has it on a CPU (no NaN among the inputs).
ARGMAX = {
    "forward": per_line(
        "int64_t best = 0; for (int64_t i = 1; i < n; ++i) if (a(i) > a(best)) best = i; out.data[k] = best;"
    ),
    "backward": per_line(
        "int64_t best = n - 1; for (int64_t i = n; i-- > 0;) if (a(i) >= a(best)) best = i; out.data[k] = best;"
    ),
    "value first": per_line("""\
T top = a(0);
    for (int64_t i = 1; i < n; ++i) top = std::max(top, a(i));
    int64_t at = 0;
    while (a(at) != top) ++at;
    out.data[k] = at;"""),
    "tournament": per_line("""\
std::vector<int64_t> left(n);
    for (int64_t i = 0; i < n; ++i) left[i] = i;
    for (int64_t step = 1; step < n; step *= 2)
      for (int64_t i = 0; i + step < n; i += 2 * step) left[i] = a(left[i + step]) > a(left[i]) ?
          left[i + step] : left[i];
    out.data[k] = left[0];"""),
}
LARGEST = {
    "partial sort": "std::partial_sort(v.begin(), v.begin() + size, v.end(), std::greater<T>());",
    "selection": "std::nth_element(v.begin(), v.begin() + size - 1, v.end(), std::greater<T>());\n"
    "    std::sort(v.begin(), v.begin() + size, std::greater<T>());",
    "heap": "std::make_heap(v.begin(), v.end());\n"
    "    for (int64_t j = 0; j < size; ++j) std::pop_heap(v.begin(), v.end() - j);\n"
    "    std::reverse(v.begin(), v.end());",
    "insertion": "for (int64_t j = 0; j < size; ++j) for (int64_t i = n - 1; i > j; "
    "--i) if (v[i] > v[i - 1]) std::swap(v[i], v[i - 1]);",
}
COPY = "std::vector<T> v(n);\n    for (int64_t i = 0; i < n; ++i) v[i] = a(i);\n    "
MEDIAN = {
    "sort": "std::sort(v.begin(), v.end());",
    "selection": "std::nth_element(v.begin(), v.begin() + (n - 1) / 2, v.end());",
    "counting": "std::vector<T> u = v;\n    for (T e : u) {\n      int64_t less = 0, same = 0;\n"
    "      for (T f : u) { less += f < e; same += f == e; }\n"
    "      if (less <= (n - 1) / 2 && (n - 1) / 2 < less + same) v[(n - 1) / 2] = e;\n    }",
}
SORTED = {
    "std": "std::sort(v.begin(), v.end());",
    "merge": "std::stable_sort(v.begin(), v.end());",
    "insertion": "for (int64_t i = 1; i < n; ++i) for (int64_t j = i; j > 0 && v[j] < v[j - 1]; "
    "--j) std::swap(v[j], v[j - 1]);",
    "odd and even": "for (int64_t r = 0; r < n; ++r) for (int64_t i = r & 1; i + 1 < n; "
    "i += 2) if (v[i + 1] < v[i]) std::swap(v[i], v[i + 1]);",
    "heap": "std::make_heap(v.begin(), v.end());\n    std::sort_heap(v.begin(), v.end());",
}
ALL = "\n    for (int64_t i = 0; i < n; ++i) out.data[l.start(k) + i * l.inner] = v[i];"
TO = "out.data[l.start(k) + i * l.inner]"
SCANS = {
    "sequential": per_line(f"Acc s = 0; for (int64_t i = 0; i < n; ++i) {TO} = s += a(i);"),
    "double": per_line(f"Wide s = 0; for (int64_t i = 0; i < n; ++i) {TO} = T(s += a(i));"),
    "two levels": per_line(f"""\
Acc before = 0;
    for (int64_t first = 0; first < n; first += 32) {{  // sums within blocks, then what came before each
      Acc s = 0;
      for (int64_t i = first; i < std::min(first + 32, n); ++i) {TO} = s += a(i);
      for (int64_t i = first; i < std::min(first + 32, n); ++i) {TO} += before;
      before += s;
    }}"""),
    "doubling": per_line(f"""\
for (int64_t i = 0; i < n; ++i) {TO} = a(i);
    for (int64_t step = 1; step < n; step *= 2)  // Hillis and Steele, downwards within the output
      for (int64_t i = n; i-- > step;) {TO} += out.data[l.start(k) + (i - step) * l.inner];"""),
    "three phases": per_line(f"""\
const int64_t parts = 4;
    Acc total[5] = {{}};
    for (int64_t p = 0; p < parts; ++p)
      for (int64_t i = n * p / parts; i < n * (p + 1) / parts; ++i) total[p + 1] += a(i);
    for (int64_t p = 1; p <= parts; ++p) total[p] += total[p - 1];
    for (int64_t p = parts; p-- > 0;) {{
      Acc s = total[p];
      for (int64_t i = n * p / parts; i < n * (p + 1) / parts; ++i) {TO} = s += a(i);
    }}"""),
}
HISTOGRAM = {
    "serial": "std::fill(out.data, out.data + size, 0);\n  for (int64_t j = 0; j < n; ++j) ++out.data[i.data[j]];",
    "atomic": "std::fill(out.data, out.data + size, 0);\n  #pragma omp parallel for\n"
    "  for (int64_t j = 0; j < n; ++j) {\n    #pragma omp atomic\n    ++out.data[i.data[j]];\n  }",
    "thread-local": "std::fill(out.data, out.data + size, 0);\n  #pragma omp parallel\n  {\n"
    "    std::vector<int64_t> own(size);\n"
    "    #pragma omp for nowait\n    for (int64_t j = 0; j < n; ++j) ++own[i.data[j]];\n    #pragma omp critical\n"
    "    for (int64_t b = 0; b < size; ++b) out.data[b] += own[b];\n  }",
    "sorted": "std::vector<int64_t> v(i.data, i.data + n);\n  std::sort(v.begin(), v.end());\n"
    "  for (int64_t b = 0; b < size; ++b)\n"
    "    out.data[b] = std::upper_bound(v.begin(), v.end(), b) - std::lower_bound(v.begin(), v.end(), b);",
}
SIZES = "const int64_t n = i.numel(), size = out.numel();\n  "
ADD = {
    "by source": "std::fill(out.data, out.data + out.numel(), T(0));\n  for (int64_t r = 0; r < i.numel(); ++r)\n"
    "    for (int64_t j = 0; j < width; ++j) out.data[i.data[r] * width + j] += x.data[r * width + j];",
    "by target": "each(out.size(0), [&](int64_t to) {\n    for (int64_t j = 0; j < width; ++j) {\n      Acc s = 0;\n"
    "      for (int64_t r = 0; r < i.numel(); ++r) if (i.data[r] == to) s += x.data[r * width + j];\n"
    "      out.data[to * width + j] = s;\n    }\n  });",
    "atomic": "std::fill(out.data, out.data + out.numel(), T(0));\n  #pragma omp parallel for schedule(dynamic, 4)\n"
    "  for (int64_t r = 0; r < i.numel(); ++r)\n    for (int64_t j = 0; j < width; ++j) {\n      #pragma omp atomic\n"
    "      out.data[i.data[r] * width + j] += x.data[r * width + j];\n    }",
}
ROWS = {
    "memcpy": "each(i.numel(), [&](int64_t r) { std::memcpy(out.data + r * width, w.data + i.data[r] * width, "
    "width * sizeof(T)); });",
    "flat": "each(out.numel(), [&](int64_t e) { out.data[e] = w.data[i.data[e / width] * width + e % width]; });",
    "by column": "for (int64_t j = 0; j < width; ++j) for (int64_t r = 0; r < i.numel(); "
    "++r) out.data[r * width + j] = w.data[i.data[r] * width + j];",
}
WIDTH = "const int64_t width = {}.size(1);\n  "
GATHER = """\
const int64_t wide = x.size(1), narrow = i.size(1);
  each(i.size(0), [&](int64_t r) {
    for (int64_t j = 0; j < narrow; ++j) out.data[r * narrow + j] = x.data[r * wide + i.data[r * narrow + j]];
  });"""
TURN = {
    "lines": "each(N * B, [&](int64_t t) { for (int64_t j = 0; j < A; "
    "++j) out.data[t * A + j] = x.data[(t / B * A + j) * B + t % B]; });",
    "tiles": "each(N, [&](int64_t m) {\n    for (int64_t p = 0; p < A; p += 16) for (int64_t q = 0; q < B; q += 16)\n"
    "      for (int64_t j = p; j < std::min(p + 16, A); ++j) for (int64_t k = q; k < std::min(q + 16, B); ++k)\n"
    "        out.data[(m * B + k) * A + j] = x.data[(m * A + j) * B + k];\n  });",
    "scatter": "each(x.numel(), [&](int64_t e) { out.data[(e / (A * B) * B + e % B) * A + e / B % A] = x.data[e]; });",
}
COUNT = {
    "count": per_line("int64_t s = 0; for (int64_t i = 0; i < n; ++i) s += a(i) > 0; out.data[k] = s;"),
    "sign bits": per_line(
        "int64_t s = n; for (int64_t i = 0; i < n; ++i) s -= a(i) <= 0 || a(i) != a(i); out.data[k] = s;"
    ),
}
FLAT, DIM = "torch.randn(131, 257)", "In x, int64_t dim, "
GROUPS = (
    Group("argmax", task("x.argmax(-1)", FLAT), DIM + "Found out", ARGMAX),
    Group(
        "argmax with ties", task("x.argmax(1)", "torch.randint(0, 9, (37, 101, 7)).float()"), DIM + "Found out", ARGMAX
    ),
    Group(
        "argmin of integers",
        task("x.argmin(-1)", "torch.randint(0, 500, (101, 131))"),
        DIM + "Found out",
        {way: text.replace("a(i) >", "a(i) <") for way, text in list(ARGMAX.items())[:2]},
        "int64",
    ),
    Group(
        "top five",
        task("torch.topk(x, 5, dim=-1).values", FLAT),
        "In x, int64_t size, Out out",
        {
            way: per_line(COPY + text + "\n    for (int64_t j = 0; j < size; ++j) out.data[k * size + j] = v[j];", "-1")
            for way, text in LARGEST.items()
        },
    ),
    Group(
        "median",
        task("torch.median(x, dim=1).values", "torch.randn(61, 101, 3)"),
        DIM + "Out out",
        {way: per_line(COPY + text + "\n    out.data[k] = v[(n - 1) / 2];") for way, text in MEDIAN.items()},
    ),
    Group(
        "sort",
        task("torch.sort(x, dim=-1).values", "torch.randn(67, 129)"),
        "In x, Out out",
        {way: per_line(COPY + text + ALL, "-1") for way, text in SORTED.items()},
    ),
    Group(
        "sort of integers",
        task("torch.sort(x, dim=-1).values", "torch.randint(0, 50, (101, 61))"),
        "In x, Out out",
        {way: per_line(COPY + text + ALL, "-1") for way, text in SORTED.items()},
        "int64",
        1,
    ),
    Group("cumulative sum", task("torch.cumsum(x, dim=-1)", "torch.rand(131, 257)"), DIM + "Out out", SCANS),
    Group(
        "cumulative sum of columns",
        task("torch.cumsum(x, dim=1)", "torch.randn(7, 301, 13)"),
        DIM + "Out out",
        SCANS,
        schedules=1,
    ),
    Group(
        "cumulative count",
        task("torch.cumsum(x, dim=0)", "torch.randint(0, 9, (1001, 13))"),
        DIM + "Out out",
        SCANS,
        "int64",
        1,
    ),
    Group(
        "cumulative product",
        task("torch.cumprod(x, dim=1)", "torch.rand(167, 31) + 0.5"),
        DIM + "Out out",
        {
            "sequential": per_line(f"Acc s = 1; for (int64_t i = 0; i < n; ++i) {TO} = s *= a(i);"),
            "double": per_line(f"Wide s = 1; for (int64_t i = 0; i < n; ++i) {TO} = T(s *= a(i));"),
        },
    ),
    Group("positive", task("(x > 0).sum(-1)", FLAT), "In x, int64_t dim, Found out", COUNT),
    Group(
        "any above three",
        task("(x > 3).any(-1)", FLAT),
        "In x, int64_t least, int64_t dim, Truth out",
        {
            "all": per_line("bool s = false; for (int64_t i = 0; i < n; ++i) s |= a(i) > least; out.data[k] = s;"),
            "early exit": per_line("int64_t i = 0; while (i < n && !(a(i) > least)) ++i; out.data[k] = i < n;"),
        },
    ),
    Group(
        "histogram",
        task(
            "torch.zeros(64, dtype=torch.int64).scatter_add(0, i, torch.ones_like(i))",
            "torch.randint(0, 64, (20011,))",
            arguments="i",
        ),
        "Places i, int64_t, Found out",
        {way: SIZES + text for way, text in HISTOGRAM.items()},
        schedules=1,
    ),
    Group(
        "index add",
        task(
            "torch.zeros(50, 33).index_add(0, i, x)",
            "torch.randn(501, 33), torch.randint(0, 50, (501,))",
            arguments="x, i",
        ),
        "In x, Places i, int64_t, Out out",
        {way: WIDTH.format("x") + text for way, text in ADD.items()},
        schedules=1,
        labels=("nondeterministic",),
        only_labelled=("atomic",),
    ),
    Group(
        "embedding",
        task(
            "F.embedding(i, self.weight)",
            "torch.randint(0, 501, (37, 29))",
            arguments="i",
            setup="self.weight = nn.Parameter(torch.randn(501, 67))",
        ),
        "Places i, In w, Out out",
        {way: WIDTH.format("w") + text for way, text in ROWS.items()},
    ),
    Group(
        "rows by index",
        task("x[i]", "torch.randn(333, 57), torch.randint(0, 333, (501,))", arguments="x, i"),
        "In w, Places i, Out out",
        {way: WIDTH.format("w") + text for way, text in ROWS.items()},
        schedules=1,
    ),
    Group(
        "gather",
        task("torch.gather(x, 1, i)", "torch.randn(301, 257), torch.randint(0, 257, (301, 65))", arguments="x, i"),
        "In x, Places i, int64_t, Out out",
        {"rows": GATHER},
    ),
    Group(
        "transpose",
        task("x.transpose(1, 2).contiguous()", "torch.randn(5, 133, 57)"),
        "In x, Out out",
        {way: "const int64_t N = x.size(0), A = x.size(1), B = x.size(2);\n  " + text for way, text in TURN.items()},
    ),
)


def kernels() -> Iterator[Honest]:
    """Yield all of this family."""
    for number, group in enumerate(GROUPS):
        for way, text in group.ways.items():
            rounds = group.schedules if "each(" in text else 1
            for schedule in spread(rounds, 3 * number):
                body = f"void run({group.parameters}) {{\n  {text}\n}}\n"
                source = kernel(
                    body, schedule=schedule if "each(" in text else "", dtype=group.dtype, pieces=[LINES, INDEX]
                )
                labels = group.labels if way in group.only_labelled else ()
                yield Honest(f"{group.name}: {way}, {schedule}", "index and order", group.source, cpu(source), labels)
