"""Tasks of which something is left out, or lost in a difference: sums to come, light, what a teacher hardly says."""

from __future__ import annotations

from rag_kernels.eval.zoo.bodies.task import EACH_ROW, Task

TASKS = (
    Task(
        "still to come",
        "In x, int64_t dim, Out out",
        EACH_ROW
        + """\
  double total = 0;
  for (int64_t i = n - 1; i >= 0; --i) out.data[r * n + i] = float(total += a[i]);
}""",
    ),
    Task(
        "sticks",
        "In x, int64_t dim, Out out",
        EACH_ROW
        + """\
  std::vector<double> left(n);
  for (int64_t i = 0; i < n; ++i)
    left[i] = std::fmin(-double(a[i]), 0.0) - std::log1p(std::exp(-std::fabs(double(a[i]))));
  double total = 0;
  for (int64_t i = n - 1; i >= 0; --i) {
    const double mine = std::fmin(double(a[i]), 0.0) - std::log1p(std::exp(-std::fabs(double(a[i]))));
    out.data[r * n + i] = float(std::exp(mine + total));
    total += left[i];
  }
}""",
    ),
    Task(
        "pruned",
        "In x, Mask m, Out out",
        "for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = m.data[i] ? x.data[i] : 0.0f;",
    ),
    Task(
        "added in bf16",
        "Half x, Half y, HalfOut out",
        "for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = rounded(float(x.data[i]) + float(y.data[i]));",
    ),
    Task(
        "rendered",
        "In x, In y, int64_t dim, Out out",
        EACH_ROW
        + """\
  double light = 1, total = 0;
  for (int64_t i = 0; i < n; ++i) {
    light *= 1 - 1 / (1 + std::exp(-a[i]));
    total += light * y.data[r * n + i];
  }
  out.data[r] = float(total);
}""",
    ),
    Task(
        "taught",
        "In x, In y, int64_t dim, Out out",
        EACH_ROW
        + """\
  const float* b = y.data + r * n;
  float top = -INFINITY, best = -INFINITY;
  double all = 0, weights = 0, total = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, a[i]), best = std::max(best, b[i]);
  for (int64_t i = 0; i < n; ++i) all += std::exp(a[i] - top), weights += std::exp(b[i] - best);
  const double sum = std::log(all);
  for (int64_t i = 0; i < n; ++i) total -= std::exp(double(b[i]) - best) / weights * (double(a[i]) - top - sum);
  out.data[r] = float(total);
}""",
    ),
    Task(
        "phase",
        "In x, In y, Out out",
        "for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = std::fmod(x.data[i], y.data[i]);",
    ),
    Task(
        "imaginary",
        "In x, In y, In z, In w, Out out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  const double a = x.data[i], b = y.data[i], c = z.data[i], d = w.data[i];
  out.data[i] = float(a * d + b * c);
}""",
    ),
)
