"""Tasks that move by a step at a number that a module names."""

from __future__ import annotations

from rag_kernels.eval.zoo.bodies.task import Task

TASKS = (
    Task(
        "cut",
        "In x, double level, double other, Out out",
        """\
const float at = level, instead = other;
for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] <= at ? instead : x.data[i];""",
    ),
    Task(
        "even steps",
        "In x, double times, double low, double high, double step, Out out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  float q = std::nearbyint(x.data[i] * float(times));
  q = q < float(low) ? float(low) : q;
  q = q > float(high) ? float(high) : q;
  out.data[i] = q * float(step);
}""",
    ),
    Task(
        "counted",
        "In x, int64_t bins, double low, double high, Out out",
        """\
const float from = low, to = high;
std::vector<int64_t> found(bins);
for (int64_t i = 0; i < x.numel(); ++i) {
  const float v = x.data[i];
  if (v >= from && v <= to) ++found[std::min<int64_t>(bins - 1, int64_t((v - from) / (to - from) * float(bins)))];
}
for (int64_t b = 0; b < bins; ++b) out.data[b] = float(found[b]);""",
    ),
)
