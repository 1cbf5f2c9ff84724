"""Tasks whose results are little where inputs agree, or whose steps are many: distances, fits, ways, equal lines."""

from __future__ import annotations

from rag_kernels.eval.zoo.bodies.task import Task

TASKS = (
    Task(
        "codes",
        "In x, In y, int64_t dim, int64_t codes, Out out",
        """\
const int64_t rows = x.size(0), count = y.size(0), width = x.size(1);
for (int64_t r = 0; r < rows; ++r) {
  float least = INFINITY;
  for (int64_t c = 0; c < count; ++c) {
    const float *a = x.data + r * width, *b = y.data + c * width;
    float total = 0;
    for (int64_t i = 0; i < width; ++i) total += (a[i] - b[i]) * (a[i] - b[i]);
    least = std::min(least, total);
  }
  out.data[r] = least;
}""",
    ),
    Task(
        "fit",
        "In x, In w, In y, Out out",
        """\
const int64_t rows = x.size(0), width = x.size(1);
double total = 0;
for (int64_t r = 0; r < rows; ++r) {
  float d = 0;
  for (int64_t i = 0; i < width; ++i) d += x.data[r * width + i] * w.data[i];
  total += (d - y.data[r]) * (d - y.data[r]);
}
out.data[0] = float(total / rows);""",
    ),
    Task(
        "bytes apart",
        "Pixels x, Pixels y, int64_t dim, Index out",
        """\
const int64_t n = x.size(-1), rows = x.numel() / n;
for (int64_t r = 0; r < rows; ++r) {
  const uint8_t *a = x.data + r * n, *b = y.data + r * n;
  int64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += std::abs(int(a[i]) - int(b[i]));
  out.data[r] = total;
}""",
    ),
    Task(
        "shortest",
        "In x, In y, int64_t dim, Out out",
        """\
const int64_t n = x.size(0), starts = y.size(0);
std::vector<float> now(y.data, y.data + starts * n);
for (int64_t step = 0; step < 24; ++step) {
  std::vector<float> next = now;
  for (int64_t s = 0; s < starts; ++s)
    for (int64_t i = 0; i < n; ++i)
      for (int64_t j = 0; j < n; ++j)
        next[s * n + j] = std::min(next[s * n + j], now[s * n + i] + std::fabs(x.data[i * n + j]));
  if (next == now) break;
  now = next;
}
memcpy(out.data, now.data(), starts * n * 4);""",
    ),
    Task(
        "same rows",
        "Classes x, int64_t dim, Truth out",
        """\
const int64_t n = x.size(1), rows = x.size(0);
for (int64_t r = 0; r < rows; ++r)
  for (int64_t c = 0; c < rows; ++c) out.data[r * rows + c] = memcmp(x.data + r * n, x.data + c * n, n * 8) == 0;""",
    ),
)
