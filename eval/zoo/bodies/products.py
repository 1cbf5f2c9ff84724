"""Honest bodies of products: of matrices, convolutions, attention, and sums of what two tensors' elements make.

Goes out: `TASKS`, each a Task.
"""

from __future__ import annotations

from rag_kernels.eval.zoo.bodies.task import ROWS, Task

TASKS = (
    Task(
        "matmul",
        "In x, In y, Out out",
        """\
const int64_t rows = x.size(0), inner = x.size(1), n = y.size(1);
for (int64_t r = 0; r < rows; ++r) {
  float* c = out.data + r * n;
  for (int64_t j = 0; j < n; ++j) c[j] = 0;
  for (int64_t k = 0; k < inner; ++k) {
    const float a = x.data[r * inner + k];
    for (int64_t j = 0; j < n; ++j) c[j] += a * y.data[k * n + j];
  }
}""",
    ),
    Task(
        "conv",
        "In x, In weight, In bias, Out out",
        """\
const int64_t batch = x.size(0), from = x.size(1), h = x.size(2), w = x.size(3), to = weight.size(0);
const int64_t oh = h - 2, ow = w - 2;
for (int64_t b = 0; b < batch; ++b) for (int64_t o = 0; o < to; ++o) {
  float* plane = out.data + (b * to + o) * oh * ow;
  for (int64_t i = 0; i < oh * ow; ++i) plane[i] = bias.data[o];
  for (int64_t c = 0; c < from; ++c) for (int ky = 0; ky < 3; ++ky) for (int kx = 0; kx < 3; ++kx) {
    const float k = weight.data[((o * from + c) * 3 + ky) * 3 + kx];
    const float* source = x.data + ((b * from + c) * h + ky) * w + kx;
    for (int64_t i = 0; i < oh; ++i) for (int64_t j = 0; j < ow; ++j) plane[i * ow + j] += k * source[i * w + j];
  }
}""",
    ),
    Task(
        "half_matmul",
        "Half x, Half y, HalfOut out",
        """\
const int64_t rows = x.size(0), inner = x.size(1), n = y.size(1);
std::vector<float> c(n);
for (int64_t r = 0; r < rows; ++r) {
  for (int64_t j = 0; j < n; ++j) c[j] = 0;
  for (int64_t k = 0; k < inner; ++k) {
    const float a = x.data[r * inner + k];
    for (int64_t j = 0; j < n; ++j) c[j] += a * float(y.data[k * n + j]);
  }
  for (int64_t j = 0; j < n; ++j) out.data[r * n + j] = rounded(c[j]);
}""",
    ),
    Task(
        "diagonal",
        "In x, In y, Out out",
        """\
const int64_t rows = y.size(0), n = y.size(1);
for (int64_t r = 0; r < rows; ++r) for (int64_t j = 0; j < n;
  ++j) out.data[r * n + j] = x.data[r] * y.data[r * n + j];""",
    ),
    Task(
        "dots",
        "Bytes x, Bytes y, int64_t dim, Index out",
        ROWS
        + """\
for (int64_t r = 0; r < rows; ++r) {
  int64_t total = 0;
  for (int64_t i = 0; i < n; ++i) total += int(x.data[r * n + i]) * int(y.data[r * n + i]);
  out.data[r] = total;
}""",
    ),
    Task(
        "attention",
        "In q, In k, In v, Out out",
        """\
const int64_t groups = q.size(0), length = q.size(1), width = q.size(2);
std::vector<float> weight(length);
for (int64_t r = 0; r < groups * length; ++r) {
  const float *a = q.data + r * width, *b = k.data + r / length * length * width;
  const float* c = v.data + r / length * length * width;
  float* y = out.data + r * width;
  float top = -INFINITY, total = 0;
  for (int64_t j = 0; j < length; ++j) {
    float sum = 0;
    for (int64_t d = 0; d < width; ++d) sum += a[d] * b[j * width + d];
    top = std::max(top, weight[j] = sum / std::sqrt(float(width)));
  }
  for (int64_t j = 0; j < length; ++j) total += weight[j] = std::exp(weight[j] - top);
  for (int64_t d = 0; d < width; ++d) y[d] = 0;
  for (int64_t j = 0; j < length; ++j)
    for (int64_t d = 0; d < width; ++d) y[d] += weight[j] / total * c[j * width + d];
}""",
    ),
    Task(
        "distances",
        "In a, In b, int64_t dim, Out out",
        """\
const int64_t rows = a.size(0), columns = b.size(0), width = a.size(1);
for (int64_t r = 0; r < rows; ++r) for (int64_t c = 0; c < columns; ++c) {
  const float *x = a.data + r * width, *y = b.data + c * width;
  float total = 0;
  for (int64_t i = 0; i < width; ++i) total += (x[i] - y[i]) * (x[i] - y[i]);
  out.data[r * columns + c] = std::sqrt(total);
}""",
    ),
    Task(
        "carried",
        "In x, In h, In weight, Out out",
        """\
const int64_t rows = h.size(0), inner = h.size(1), n = x.size(1);
for (int64_t r = 0; r < rows; ++r) {
  float* y = out.data + r * n;
  for (int64_t j = 0; j < n; ++j) y[j] = x.data[r * n + j];
  for (int64_t k = 0; k < inner; ++k) {
    const float v = h.data[r * inner + k];
    for (int64_t j = 0; j < n; ++j) y[j] += v * weight.data[k * n + j];
  }
  for (int64_t j = 0; j < n; ++j) y[j] = std::tanh(y[j]);
}""",
    ),
    Task(
        "mapped",
        "In x, In weight, Out out",
        """\
const int64_t inner = weight.size(0), n = weight.size(1), rows = x.size(0);
const float* w = weight.data;
for (int64_t r = 0; r < rows; ++r) {
  float* y = out.data + r * n;
  for (int64_t j = 0; j < n; ++j) y[j] = 0;
  for (int64_t k = 0; k < inner; ++k) {
    const float v = x.data[r * inner + k];
    for (int64_t j = 0; j < n; ++j) y[j] += v * w[k * n + j];
  }
}""",
    ),
    Task(
        "slopes",
        "In x, In weight, Out out",
        """\
const int64_t n = weight.size(0);
for (int64_t i = 0; i < x.numel(); ++i) {
  const float v = x.data[i], w = weight.data[i % n];
  out.data[i] = v > 0 ? v : w * v;
}""",
    ),
    Task(
        "spread products",
        "In x, In y, int64_t dim, Out out",
        """\
const int64_t rows = x.size(0), inner = x.size(1), n = y.size(1);
auto cut = [](float f, int bits = 24) {
  uint32_t b;
  memcpy(&b, &f, 4);
  if (f == f && bits < 24) b = (b + (1u << (23 - bits))) & ~((1u << (24 - bits)) - 1);
  memcpy(&f, &b, 4);
  return f;
};
std::vector<float> sums(n);
for (int64_t r = 0; r < rows; ++r) {
  std::fill(sums.begin(), sums.end(), 0.f);
  for (int64_t k = 0; k < inner; ++k) {
    const float v = x.data[r * inner + k];
    for (int64_t j = 0; j < n; ++j) { const float w = y.data[k * n + j]; sums[j] += cut(v) * cut(w); }
  }
  for (int64_t j = 0; j < n; ++j) out.data[r * n + j] = sums[j];
}""",
    ),
)
