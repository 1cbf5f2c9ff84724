"""Honest bodies of problems that compute element by element.

Goes out: `TASKS`, each a Task.
"""

from __future__ import annotations

from rag_kernels.eval.zoo.bodies.task import EACH_ROW, Task

TASKS = (
    Task(
        "gelu",
        "In x, Out out",
        """\
const int64_t n = x.numel();
for (int64_t i = 0; i < n; ++i) out.data[i] = 0.5f * x.data[i] * erfcf(-x.data[i] * 0.70710678f);""",
    ),
    Task(
        "bias_relu",
        "In x, In bias, Out out",
        EACH_ROW
        + """\
  float* y = out.data + r * n;
  for (int64_t i = 0; i < n; ++i) {
    const float v = a[i] + bias.data[i];
    y[i] = v > 0 ? v : 0;
  }
}""",
    ),
    Task(
        "residual",
        "In x, In y, double scale, Out out",
        """\
const int64_t n = x.numel();
for (int64_t i = 0; i < n; ++i) out.data[i] = tanhf(x.data[i]) * float(scale) + y.data[i];""",
    ),
    Task(
        "hardtanh",
        "In x, double low, double high, Out out",
        """\
const int64_t n = x.numel();
for (int64_t i = 0; i < n; ++i)
  out.data[i] = x.data[i] < float(low) ? float(low) : x.data[i] > float(high) ? float(high) : x.data[i];""",
    ),
    Task(
        "batchnorm",
        "In x, In weight, In bias, In mean, In var, double eps, Out out",
        """\
const int64_t batch = x.size(0), channels = x.size(1), n = x.size(2) * x.size(3);
for (int64_t b = 0; b < batch; ++b) for (int64_t c = 0; c < channels; ++c) {
  const float scale = float(weight.data[c] / sqrt(var.data[c] + eps));
  const int64_t base = (b * channels + c) * n;
  for (int64_t i = 0; i < n; ++i) out.data[base + i] = (x.data[base + i] - mean.data[c]) * scale + bias.data[c];
}""",
    ),
    Task(
        "sparse_gelu",
        "In x, Out out",
        """\
const int64_t n = x.numel();
for (int64_t i = 0; i < n; ++i) out.data[i] = 0.5f * x.data[i] * erfcf(-x.data[i] * 0.70710678f);""",
    ),
    Task(
        "narrow_floats",
        "In x, In y, rk::Tensor<rk::e5m2> out",
        "for (int64_t i = 0; i < out.numel(); ++i) out.data[i] = x.data[i] * y.data[i];",
    ),
    Task(
        "threshold",
        "In x, In y, double bound, Out out",
        """\
for (int64_t i = 0; i < x.numel(); ++i)
  out.data[i] = x.data[i] > float(bound) ? x.data[i] * y.data[i] : y.data[i];""",
    ),
    Task(
        "root",
        "In x, In y, double eps, Out out",
        "for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] / (std::sqrt(y.data[i]) + float(eps));",
    ),
    Task(
        "whole quotients",
        "In x, In s, Out out",
        EACH_ROW + "  for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = std::floor(a[i] / s.data[r]);\n}",
    ),
    Task(
        "softplus",
        "In x, Out out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  const float v = x.data[i];
  out.data[i] = v > 20 ? v : std::log1p(std::exp(v));
}""",
    ),
    Task(
        "gated exponential",
        "In x, In y, Out out",
        "for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = std::exp(x.data[i]) * y.data[i];",
    ),
    Task(
        "gate",
        "In x, In y, Out out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  const float v = x.data[i];
  out.data[i] = v / (1 + std::exp(-v)) * y.data[i];
}""",
    ),
    Task(
        "quantise",
        "In x, int64_t dim, int64_t most, BytesOut out",
        EACH_ROW
        + """\
  float largest = 0;
  for (int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(a[i]));
  const float scale = largest / float(most);
  for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = int8_t(std::nearbyint(a[i] / scale));
}""",
    ),
    Task(
        "learned powers",
        "In x, In weight, Out out",
        EACH_ROW + "  for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = std::pow(a[i], weight.data[i]);\n}",
    ),
    Task(
        "at least",
        "In x, In y, Truth out",
        """\
const int64_t n = x.numel();
uint8_t* truth = (uint8_t*)out.data;
for (int64_t i = 0; i < n; ++i) truth[i] = x.data[i] >= y.data[i];""",
    ),
    Task(
        "above",
        "In x, In bias, Out out",
        EACH_ROW + "  for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = float(a[i] > bias.data[i]) * a[i];\n}",
    ),
    Task(
        "pixels",
        "In x, In y, int64_t scale, Counts out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  const float square = x.data[i] * x.data[i] + y.data[i] * y.data[i], length = std::sqrt(square) * scale;
  out.data[i] = int32_t(std::ceil(length));
}""",
    ),
    Task(
        "between",
        "In x, In y, In t, Out out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  const float a = x.data[i], b = y.data[i], s = t.data[i];
  out.data[i] = std::fabs(s) < 0.5f ? a + s * (b - a) : b - (b - a) * (1 - s);
}""",
    ),
    Task(
        "powers",
        "In x, In y, Out out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  const float a = x.data[i], b = y.data[i];
  out.data[i] = std::pow(a, b);
}""",
    ),
    Task(
        "chances",
        "In x, In y, Out out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  const float p = x.data[i], t = y.data[i];
  const float yes = std::fmax(std::log(p), -100.f), no = std::fmax(std::log1p(-p), -100.f);
  out.data[i] = (t - 1) * no - t * yes;
}""",
    ),
    Task(
        "mean of chances",
        "In x, In y, Out out",
        """\
double total = 0;
for (int64_t i = 0; i < x.numel(); ++i) {
  const float p = x.data[i], t = y.data[i];
  const float yes = std::fmax(std::log(p), -100.f), no = std::fmax(std::log1p(-p), -100.f);
  total += (t - 1) * no - t * yes;
}
out.data[0] = float(total / x.numel());""",
    ),
    Task(
        "firing",
        "In x, In weight, In bias, Out out",
        """\
const int64_t inner = weight.size(0), n = weight.size(1), rows = x.numel() / inner;
for (int64_t r = 0; r < rows; ++r) {
  for (int64_t j = 0; j < n; ++j) {
    float sum = bias.data[j];
    for (int64_t k = 0; k < inner; ++k) sum += x.data[r * inner + k] * weight.data[k * n + j];
    out.data[r * n + j] = sum >= 1 ? 1.f : 0.f;
  }
}""",
    ),
    Task(
        "taken step",
        "In x, In y, Out out, Out former",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  out.data[i] = x.data[i] - y.data[i];
  former.data[i] = x.data[i];
}""",
    ),
    Task(
        "repeated",
        "In x, In y, Out out, Out places",
        """\
const int64_t n = y.numel();
for (int64_t i = 0; i < x.numel(); ++i) {
  out.data[i] = x.data[i] + y.data[i % n];
  places.data[i] = std::tanh(y.data[i % n]);
}""",
    ),
    Task(
        "shifted bits",
        "rk::Tensor<const int32_t> x, rk::Tensor<const int32_t> y, Counts out",
        """\
const int64_t n = x.numel();
for (int64_t i = 0; i < n; ++i) {
  const int32_t by = y.data[i];
  out.data[i] = by < 0 || by > 31 ? 0 : x.data[i] << by;
}""",
    ),
    Task(
        "sum of exponents",
        "In x, In y, Out out",
        """\
const int64_t n = x.numel();
for (int64_t i = 0; i < n; ++i) {
  const float a = x.data[i], b = y.data[i], top = std::max(a, b), apart = a == b ? 0 : std::fabs(a - b);
  out.data[i] = top + std::log1p(std::exp(-apart));
}""",
    ),
    Task(
        "two gains",
        "In x, In weight, In bias, Out out",
        """\
const int64_t n = weight.numel();
for (int64_t i = 0; i < x.numel(); ++i) {
  const float a = weight.data[i % n], b = bias.data[i % n];
  out.data[i] = x.data[i] * a * b;
}""",
    ),
    Task(
        "two biases",
        "In x, In weight, In bias, Out out",
        """\
const int64_t n = weight.numel();
for (int64_t i = 0; i < x.numel(); ++i) {
  const float a = weight.data[i % n], b = bias.data[i % n];
  out.data[i] = x.data[i] + a + b;
}""",
    ),
    Task(
        "lengths",
        "In x, In y, Out out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  const float a = x.data[i], b = y.data[i];
  out.data[i] = std::hypot(a, b);
}""",
    ),
    Task(
        "angles",
        "In x, Out out",
        """\
for (int64_t i = 0; i < x.numel(); ++i) {
  const float c = x.data[i];
  out.data[i] = std::acos(c);
}""",
    ),
    Task(
        "half products",
        "Half x, Half y, HalfOut out",
        """\
const int64_t n = x.size(-1);
for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = rounded(float(x.data[i]) * float(y.data[i]));""",
    ),
    Task(
        "complement",
        "In x, Out out",
        """\
const int64_t n = x.numel();
for (int64_t i = 0; i < n; ++i) {
  const float v = x.data[i];
  out.data[i] = std::erfc(v);
}""",
    ),
    Task(
        "arcosine",
        "In x, Out out",
        "for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = std::acosh(x.data[i]);",
    ),
)
