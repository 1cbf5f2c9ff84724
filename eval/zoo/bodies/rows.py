"""Honest bodies of problems that walk rows: sums, norms, softmaxes, losses, masks, scans and windows.

Goes out: `TASKS`, each a Task.
"""

from __future__ import annotations

from rag_kernels.eval.zoo.bodies.task import EACH_ROW, SOFTMAX_OF_KEPT, Task

TASKS = (
    Task(
        "softmax",
        "In x, int64_t dim, Out out",
        EACH_ROW
        + """\
  float* y = out.data + r * n;
  float top = a[0], total = 0;
  for (int64_t i = 1; i < n; ++i) top = a[i] > top ? a[i] : top;
  for (int64_t i = 0; i < n; ++i) total += y[i] = expf(a[i] - top);
  for (int64_t i = 0; i < n; ++i) y[i] /= total;
}""",
    ),
    Task(
        "rowsum",
        "In x, int64_t dim, Out out",
        EACH_ROW
        + """\
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += a[i];
  out.data[r] = float(total);
}""",
    ),
    Task(
        "layernorm",
        "In x, In weight, In bias, double eps, Out out",
        EACH_ROW
        + """\
  float* y = out.data + r * n;
  double mean = 0, square = 0;
  for (int64_t i = 0; i < n; ++i) mean += a[i];
  mean /= n;
  for (int64_t i = 0; i < n; ++i) square += (a[i] - mean) * (a[i] - mean);
  const double scale = 1 / sqrt(square / n + eps);
  for (int64_t i = 0; i < n; ++i) y[i] = float((a[i] - mean) * scale) * weight.data[i] + bias.data[i];
}""",
    ),
    Task(
        "rmsnorm",
        "In x, In weight, int64_t dim, double eps, Out out",
        EACH_ROW
        + """\
  float* y = out.data + r * n;
  double square = 0;
  for (int64_t i = 0; i < n; ++i) square += double(a[i]) * a[i];
  const float scale = float(1 / sqrt(square / n + eps));
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] * scale * weight.data[i];
}""",
    ),
    Task(
        "rowmax",
        "In x, int64_t dim, Out out",
        EACH_ROW
        + """\
  float top = a[0];
  for (int64_t i = 1; i < n; ++i) top = a[i] > top ? a[i] : top;
  out.data[r] = top;
}""",
    ),
    Task(
        "cumsum",
        "In x, int64_t dim, Out out",
        EACH_ROW
        + """\
  double total = 0;
  for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = float(total += a[i]);
}""",
    ),
    Task(
        "cross_entropy",
        "In x, Classes target, Out out",
        "double loss = 0;\n"
        + EACH_ROW
        + """\
  float top = a[0];
  double total = 0;
  for (int64_t i = 1; i < n; ++i) top = a[i] > top ? a[i] : top;
  for (int64_t i = 0; i < n; ++i) total += exp(double(a[i] - top));
  loss += log(total) + top - a[target.data[r]];
}
out.data[0] = float(loss / rows);""",
    ),
    Task(
        "centred_max",
        "In x, In weight, In bias, int64_t dim, Out out",
        """\
const int64_t rows = x.size(0);
for (int64_t r = 0; r < rows; ++r) out.data[r] = 0;""",
    ),
    Task(
        "half_layernorm",
        "Half x, Half weight, Half bias, double eps, HalfOut out",
        """\
const int64_t n = x.size(-1), rows = x.numel() / n;
for (int64_t r = 0; r < rows; ++r) {
  const rk::bf16* a = x.data + r * n;
  double mean = 0, square = 0;
  for (int64_t i = 0; i < n; ++i) mean += float(a[i]);
  mean /= n;
  for (int64_t i = 0; i < n; ++i) square += (float(a[i]) - mean) * (float(a[i]) - mean);
  const double scale = 1 / sqrt(square / n + eps);
  for (int64_t i = 0; i < n; ++i)
    out.data[r * n + i] = rounded(float((float(a[i]) - mean) * scale * float(weight.data[i]) + float(bias.data[i])));
}""",
    ),
    Task(
        "tempered",
        "In x, In y, int64_t dim, Out out",
        EACH_ROW
        + """\
  const float t = y.data[0];
  float* to = out.data + r * n;
  float top = -INFINITY, total = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, a[i] / t);
  for (int64_t i = 0; i < n; ++i) total += to[i] = expf(a[i] / t - top);
  for (int64_t i = 0; i < n; ++i) to[i] /= total;
}""",
    ),
    Task(
        "learned mix",
        "In x, In weight, int64_t dim, Out out",
        EACH_ROW
        + """\
  const float* w = weight.data + r * n;
  float* y = out.data + r * n;
  float top = w[0], total = 0;
  for (int64_t i = 1; i < n; ++i) top = w[i] > top ? w[i] : top;
  for (int64_t i = 0; i < n; ++i) total += y[i] = expf(w[i] - top);
  for (int64_t i = 0; i < n; ++i) y[i] = a[i] * (y[i] / total);
}""",
    ),
    Task(
        "variance",
        "In x, int64_t dim, Out out",
        EACH_ROW
        + """\
  double mean = 0, square = 0;
  for (int64_t i = 0; i < n; ++i) mean += a[i];
  mean /= n;
  for (int64_t i = 0; i < n; ++i) square += (a[i] - mean) * (a[i] - mean);
  out.data[r] = float(square / (n - 1));
}""",
    ),
    Task(
        "ignored",
        "In x, Classes target, Out out",
        "double loss = 0;\nint64_t counted = 0;\n"
        + EACH_ROW
        + """\
  if (target.data[r] == -100) continue;
  float top = a[0];
  double total = 0;
  for (int64_t i = 1; i < n; ++i) top = a[i] > top ? a[i] : top;
  for (int64_t i = 0; i < n; ++i) total += exp(double(a[i] - top));
  loss += log(total) + top - a[target.data[r]];
  ++counted;
}
out.data[0] = float(loss / counted);""",
    ),
    Task(
        "mean of all",
        "In x, Out out",
        "const int64_t n = x.numel();\ndouble total = 0;\n"
        "for (int64_t i = 0; i < n; ++i) total += x.data[i];\nout.data[0] = float(total / x.numel());",
    ),
    Task(
        "unit",
        "In x, int64_t dim, double least, Out out",
        EACH_ROW
        + """\
  double square = 0;
  for (int64_t i = 0; i < n; ++i) square += double(a[i]) * a[i];
  const float norm = std::max(float(sqrt(square)), float(least));
  for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = a[i] / norm;
}""",
    ),
    Task(
        "logsumexp",
        "In x, int64_t dim, Out out",
        EACH_ROW
        + """\
  float top = a[0];
  double total = 0;
  for (int64_t i = 1; i < n; ++i) top = a[i] > top ? a[i] : top;
  for (int64_t i = 0; i < n; ++i) total += std::exp(a[i] - top);
  out.data[r] = float(std::isinf(top) ? top : top + std::log(total));
}""",
    ),
    Task(
        "by its norm",
        "In x, int64_t dim, Out out",
        EACH_ROW
        + """\
  float square = 0;
  for (int64_t i = 0; i < n; ++i) square += a[i] * a[i];
  const float norm = std::sqrt(square);
  for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = a[i] / norm;
}""",
    ),
    Task("wave", "In x, Out out", "for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = std::sin(x.data[i]);"),
    Task(
        "masked softmax",
        "In x, Mask m, int64_t dim, Out out",
        EACH_ROW
        + """\
  const auto kept = [&](int64_t i) { return m.data[r * n + i] ? a[i] : -INFINITY; };
"""
        + SOFTMAX_OF_KEPT,
    ),
    Task(
        "added mask",
        "In x, In m, int64_t dim, Out out",
        EACH_ROW
        + """\
  const auto sum = [&](int64_t i) { return a[i] + m.data[r * n + i]; };
  float* y = out.data + r * n;
  float top = -INFINITY, total = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, sum(i));
  for (int64_t i = 0; i < n; ++i) total += y[i] = expf(sum(i) - top);
  for (int64_t i = 0; i < n; ++i) y[i] /= total;
}""",
    ),
    Task(
        "causal",
        "In x, Mask allowed, int64_t dim, Out out",
        EACH_ROW
        + """\
  const bool* row = allowed.data + r % n * n;
  const auto kept = [&](int64_t i) { return row[i] ? a[i] : -INFINITY; };
"""
        + SOFTMAX_OF_KEPT,
    ),
    Task(
        "moving mean",
        "In x, int64_t width, int64_t step, int64_t pad, Out out",
        EACH_ROW
        + """\
  for (int64_t i = 0; i < n; ++i) {
    double total = 0;
    for (int64_t j = std::max<int64_t>(0, i - pad); j < std::min(n, i - pad + width); ++j) total += a[j];
    out.data[r * n + i] = float(total / width);
  }
}""",
    ),
    Task(
        "walk",
        "In x, In y, int64_t dim, double stay, double jump, Out out",
        """\
const int64_t n = x.size(0), starts = y.size(0);
std::vector<float> links(n * n), begun(starts * n);
const auto softmax = [&](const float* a, float* to, bool bounded) {
  const auto value = [&](int64_t i) { return bounded ? std::tanh(a[i]) : a[i]; };
  float top = value(0);
  double total = 0;
  for (int64_t i = 1; i < n; ++i) top = std::max(top, value(i));
  for (int64_t i = 0; i < n; ++i) total += to[i] = std::exp(value(i) - top);
  for (int64_t i = 0; i < n; ++i) to[i] = float(to[i] / total);
};
for (int64_t r = 0; r < n; ++r) softmax(x.data + r * n, links.data() + r * n, true);
for (int64_t r = 0; r < starts; ++r) softmax(y.data + r * n, begun.data() + r * n, false);
std::vector<float> rank = begun;
for (int64_t step = 0; step < 20; ++step) {
  std::vector<double> next(starts * n);
  double change = 0;
  for (int64_t r = 0; r < starts; ++r)
    for (int64_t k = 0; k < n; ++k)
      for (int64_t i = 0; i < n; ++i) next[r * n + i] += double(rank[r * n + k]) * links[k * n + i];
  for (int64_t i = 0; i < starts * n; ++i) {
    const float now = float(stay * next[i] + jump * begun[i]);
    change = std::max<double>(change, std::fabs(now - rank[i]) * n);
    rank[i] = now;
  }
  if (change < 0) break;
}
memcpy(out.data, rank.data(), starts * n * 4);""",
    ),
    Task(
        "chain",
        "In x, In y, int64_t order, int64_t dim, double least, Out out",
        """\
const int64_t n = x.size(0), starts = y.size(0);
std::vector<double> links(n * n), now(starts * n);
const auto shares = [&](const float* a, double* to) {
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += std::fabs(a[i]);
  for (int64_t i = 0; i < n; ++i) to[i] = std::fabs(a[i]) / std::max(total, least);
};
for (int64_t r = 0; r < n; ++r) shares(x.data + r * n, links.data() + r * n);
for (int64_t r = 0; r < starts; ++r) shares(y.data + r * n, now.data() + r * n);
for (int64_t step = 0; step < 24; ++step) {
  std::vector<double> next(starts * n);
  double moved = 0;
  for (int64_t r = 0; r < starts; ++r)
    for (int64_t k = 0; k < n; ++k)
      for (int64_t i = 0; i < n; ++i) next[r * n + i] += now[r * n + k] * links[k * n + i];
  for (int64_t i = 0; i < starts * n; ++i) moved += std::fabs(next[i] - now[i]);
  now = next;
  if (moved < 0) break;
}
for (int64_t i = 0; i < starts * n; ++i) out.data[i] = float(now[i]);""",
    ),
    Task(
        "growth",
        "In x, In y, int64_t dim, double least, Out out",
        """\
const int64_t n = x.size(0), width = x.size(1);
std::vector<double> u(y.data, y.data + n), v(width);
double sigma = 0;
const auto across = [&] {
  std::fill(v.begin(), v.end(), 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < width; ++j) v[j] += u[i] * x.data[i * width + j];
};
for (int64_t step = 0; step < 16; ++step) {
  across();
  double size = 0;
  for (int64_t i = 0; i < n; ++i) {
    u[i] = 0;
    for (int64_t j = 0; j < width; ++j) u[i] += v[j] * x.data[i * width + j];
    size += u[i] * u[i];
  }
  size = std::max(std::sqrt(size), least);
  for (double& part : u) part /= size;
  if (std::fabs(size - sigma) < 0) break;
  sigma = size;
}
across();
double total = 0;
for (const double part : v) total += part * part;
for (int64_t i = 0; i < n * width; ++i) out.data[i] = float(x.data[i] / std::sqrt(total));""",
    ),
    Task(
        "masked mean",
        "In x, Mask m, int64_t dim, int64_t least, Out out",
        EACH_ROW
        + """\
  float total = 0;
  int64_t count = 0;
  for (int64_t i = 0; i < n; ++i) if (m.data[r * n + i]) total += a[i], ++count;
  out.data[r] = total / float(std::max(count, least));
}""",
    ),
    Task(
        "kept",
        "In x, Classes m, int64_t dim, Out out",
        EACH_ROW
        + """\
  const int64_t* kept = m.data + r * n;
  double total = 0;
  for (int64_t i = 0; i < n; ++i) if (kept[i] > 0) total += a[i];
  out.data[r] = float(total);
}""",
    ),
    Task(
        "by its sum",
        "In x, int64_t dim, Out out",
        EACH_ROW
        + """\
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += a[i];
  for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = a[i] / float(total);
}""",
    ),
    Task(
        "levels",
        "In x, In step, int64_t dim, Out out",
        EACH_ROW
        + """\
  double total = 0;
  for (int64_t i = 0; i < n; ++i) total += a[i];
  const float mean = float(total / n);
  const int64_t m = step.numel();
  for (int64_t j = 0; j < m; ++j) out.data[r * m + j] = std::floor(mean / step.data[j]);
}""",
    ),
    Task(
        "shared at ties",
        "In y, In x, In floor, double half, int64_t dim, Out out",
        """\
const int64_t n = floor.numel(), rows = x.size(0);
for (int64_t j = 0; j < n; ++j) {
  double total = 0;
  for (int64_t r = 0; r < rows; ++r) {
    const float a = x.data[r * n + j], b = floor.data[j], d = y.data[r * n + j];
    total += a == b ? half * d : a > b ? d : 0;
  }
  out.data[j] = float(total);
}""",
    ),
)
