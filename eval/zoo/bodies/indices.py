"""Honest bodies of problems whose whole numbers are places: what is picked, counted, sorted into or looked up.

Goes out: `TASKS`, each a Task.
"""

from __future__ import annotations

from rag_kernels.eval.zoo.bodies.task import EACH_ROW, Task

TASKS = (
    Task(
        "in order",
        "In x, Out out",
        EACH_ROW
        + """\
  float* y = out.data + r * n;
  memcpy(y, a, n * 4);
  std::sort(y, y + n, [](float p, float q) { return p < q || (q != q && p == p); });
}""",
    ),
    Task(
        "ids in order",
        "Index ids, Index out",
        """\
const int64_t n = ids.size(-1), rows = ids.numel() / n;
std::vector<uint64_t> from(n), to(n);
for (int64_t r = 0; r < rows; ++r) {
  uint64_t any = 0, all = ~0ull;
  for (int64_t i = 0; i < n; ++i) from[i] = uint64_t(ids.data[r * n + i]) ^ 1ull << 63;
  for (int64_t i = 0; i < n; ++i) any |= from[i], all &= from[i];
  for (int s = 0; s < 64; s += 8) {
    if (((any ^ all) >> s & 255) == 0) continue;
    int64_t first[257] = {};
    for (int64_t i = 0; i < n; ++i) ++first[(from[i] >> s & 255) + 1];
    for (int b = 0; b < 256; ++b) first[b + 1] += first[b];
    for (int64_t i = 0; i < n; ++i) to[first[from[i] >> s & 255]++] = from[i];
    from.swap(to);
  }
  for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = int64_t(from[i] ^ 1ull << 63);
}""",
    ),
    Task(
        "argmax",
        "In x, int64_t dim, Index out",
        EACH_ROW
        + """\
  int64_t best = 0;
  for (int64_t i = 1; i < n; ++i) best = a[i] > a[best] ? i : best;
  out.data[r] = best;
}""",
    ),
    Task(
        "clock",
        "Classes x, Classes y, int64_t modulus, int64_t scale, int64_t divisor, Index out",
        """\
const int64_t n = x.numel();
for (int64_t i = 0; i < n; ++i) {
  const int64_t hour = ((x.data[i] % modulus) + modulus) % modulus, a = y.data[i];
  out.data[i] = hour * scale + (a >= 0 ? a / divisor : -((divisor - 1 - a) / divisor));
}""",
    ),
    Task(
        "lookup",
        "Classes x, In weight, Out out",
        """\
const int64_t count = x.numel(), width = weight.size(1);
for (int64_t i = 0; i < count; ++i) memcpy(out.data + i * width, weight.data + x.data[i] * width, width * 4);""",
    ),
    Task(
        "collect",
        "In x, Classes at, In y, int64_t dim, Out out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i];
for (int64_t i = 0; i < y.numel(); ++i) out.data[at.data[i]] += y.data[i];""",
    ),
    Task(
        "running count",
        "Classes x, int64_t dim, Index out",
        "int64_t total = 0;\nfor (int64_t i = 0; i < x.numel(); ++i) out.data[i] = total += x.data[i];",
    ),
    Task(
        "from the end",
        "In table, Classes at, Out out",
        """\
const int64_t rows = table.size(0), width = table.size(1);
for (int64_t i = 0; i < at.numel(); ++i) {
  const int64_t row = at.data[i] < 0 ? at.data[i] + rows : at.data[i];
  memcpy(out.data + i * width, table.data + row * width, width * 4);
}""",
    ),
    Task(
        "weighed counts",
        "Index at, Index w, int64_t dim, Index out",
        """\
const int64_t n = at.size(-1), rows = at.size(0), bins = w.numel();
for (int64_t r = 0; r < rows; ++r) {
  std::vector<int64_t> count(bins, 0);
  for (int64_t i = 0; i < n; ++i) ++count[at.data[r * n + i]];
  for (int64_t b = 0; b < bins; ++b) out.data[r * bins + b] = int64_t(count[b]) * w.data[b];
}""",
    ),
    Task(
        "routed",
        "Half x, int64_t dim, int64_t most, HalfOut weight, Index at",
        """\
const int64_t n = x.size(-1), rows = x.numel() / n;
std::vector<float> share(n);
for (int64_t r = 0; r < rows; ++r) {
  const rk::bf16* a = x.data + r * n;
  float top = -INFINITY, total = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, float(a[i]));
  for (int64_t i = 0; i < n; ++i) total += share[i] = std::exp(float(a[i]) - top);
  for (int64_t j = 0; j < most; ++j) {
    int64_t best = -1;
    for (int64_t i = 0; i < n; ++i)
      if ((j == 0 || i != at.data[r * most]) && (best < 0 || share[i] > share[best])) best = i;
    at.data[r * most + j] = best;
    weight.data[r * most + j] = rounded(share[best] / total);
  }
}""",
    ),
    Task(
        "days",
        "Classes x, Classes y, Index out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  const int64_t a = x.data[i], b = y.data[i];
  if (!b) { out.data[i] = 0; continue; }
  int64_t q = a / b;
  if (q * b > a == b > 0 && q * b != a) --q;
  out.data[i] = q;
}""",
    ),
    Task(
        "places",
        "In x, Classes y, In weight, Out out",
        """\
const int64_t d = x.size(-1), s = x.size(-2), rows = x.numel() / d;
const bool run = false;
for (int64_t r = 0; r < rows; ++r) {
  const float* w = weight.data + (run ? r % s : y.data[r % s]) * d;
  for (int64_t i = 0; i < d; ++i) out.data[r * d + i] = x.data[r * d + i] + w[i];
}""",
    ),
    Task(
        "segments",
        "In x, Classes ids, int64_t dim, Out out",
        """\
const int64_t d = x.size(1), rows = x.size(0);
std::fill(out.data, out.data + out.numel(), 0.f);
bool sorted = false;
if (sorted) {
  for (int64_t s = 0; s < out.numel() / d; ++s) {
    const int64_t *end = ids.data + rows, *first = std::lower_bound(ids.data, end, s);
    const int64_t* last = std::upper_bound(first, end, s);
    for (int64_t r = first - ids.data; r < last - ids.data; ++r)
      for (int64_t i = 0; i < d; ++i) out.data[s * d + i] += x.data[r * d + i];
  }
} else {
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t i = 0; i < d; ++i) out.data[ids.data[r] * d + i] += x.data[r * d + i];
}""",
    ),
    Task(
        "even segments",
        "In x, Classes ends, int64_t dim, Out out",
        """\
const int64_t d = x.size(1), rows = x.size(0), m = ends.size(0);
std::fill(out.data, out.data + out.numel(), 0.f);
for (int64_t s = 0; s < m; ++s) {
  const int64_t first = s ? ends.data[s - 1] : 0, last = ends.data[s];
  for (int64_t r = std::max<int64_t>(first, 0); r < std::min(last, rows); ++r)
    for (int64_t i = 0; i < d; ++i) out.data[s * d + i] += x.data[r * d + i];
}""",
    ),
    Task(
        "buckets",
        "In x, In edges, Index out",
        """\
const int64_t e = edges.numel();
const float low = edges.data[0], step = (edges.data[e - 1] - low) / (e - 1);
for (int64_t i = 0; i < x.numel(); ++i) {
  const float v = x.data[i];
  int64_t at = std::lower_bound(edges.data, edges.data + e, v) - edges.data;
  out.data[i] = v == v ? at : e;
}""",
    ),
    Task(
        "same lines",
        "Classes x, Classes y, int64_t dim, Truth out",
        """\
const int64_t n = x.size(-1), rows = x.size(0), others = y.size(0);
for (int64_t r = 0; r < rows; ++r)
  for (int64_t j = 0; j < others; ++j) out.data[r * others + j] = !memcmp(x.data + r * n, y.data + j * n, n * 8);""",
    ),
)
