"""The problems of the zoo: small KernelBench texts, each with the C++ signature and an honest body for it.

Comes in: nothing. Goes out: `TASKS`, and `cpp`, which frames a body as a kernel-tier source. Sizes are a megabyte at
most, so that a judgement is quick, yet enough work that a speed-up can be seen. Knows nothing of specimens.
"""

from __future__ import annotations

from dataclasses import dataclass
from textwrap import dedent, indent

from rag_kernels.eval.zoo.problems import PROBLEMS


@dataclass(frozen=True, slots=True)
class Task:
    """One problem. `body` computes it honestly from the parameters in `signature`."""

    name: str
    signature: str
    body: str

    @property
    def problem(self) -> str:
        return PROBLEMS[self.name]

    @property
    def names(self) -> str:
        """The parameters' names, as a call needs them."""
        return ", ".join(parameter.split()[-1] for parameter in self.signature.split(", "))


ROWS = "const int64_t n = x.size(-1), rows = x.numel() / n;\n"
EACH_ROW = ROWS + ("for (int64_t r = 0; r < rows; ++r) {\n  const float* a = x.data + r * n;\n")
SOFTMAX_OF_KEPT = """\
  float* y = out.data + r * n;
  float top = -INFINITY, total = 0;
  for (int64_t i = 0; i < n; ++i) top = std::max(top, kept(i));
  for (int64_t i = 0; i < n; ++i) total += y[i] = expf(kept(i) - top);
  for (int64_t i = 0; i < n; ++i) y[i] /= total;
}"""

TASKS = {
    task.name: task
    for task in (
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
            "centred_max",
            "In x, In weight, In bias, int64_t dim, Out out",
            """\
const int64_t rows = x.size(0);
for (int64_t r = 0; r < rows; ++r) out.data[r] = 0;""",
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
            "sparse_gelu",
            "In x, Out out",
            """\
const int64_t n = x.numel();
for (int64_t i = 0; i < n; ++i) out.data[i] = 0.5f * x.data[i] * erfcf(-x.data[i] * 0.70710678f);""",
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
            "narrow_floats",
            "In x, In y, rk::Tensor<rk::e5m2> out",
            "for (int64_t i = 0; i < out.numel(); ++i) out.data[i] = x.data[i] * y.data[i];",
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
            "threshold",
            "In x, In y, double bound, Out out",
            """\
for (int64_t i = 0; i < x.numel(); ++i)
  out.data[i] = x.data[i] > float(bound) ? x.data[i] * y.data[i] : y.data[i];""",
        ),
        Task(
            "collect",
            "In x, Classes at, In y, int64_t dim, Out out",
            """\
for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i];
for (int64_t i = 0; i < y.numel(); ++i) out.data[at.data[i]] += y.data[i];""",
        ),
        Task(
            "root",
            "In x, In y, double eps, Out out",
            "for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = x.data[i] / (std::sqrt(y.data[i]) + float(eps));",
        ),
        Task(
            "running count",
            "Classes x, int64_t dim, Index out",
            "int64_t total = 0;\nfor (int64_t i = 0; i < x.numel(); ++i) out.data[i] = total += x.data[i];",
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
  double total = 0;
  for (int64_t i = 0; i < n + pad; ++i) {
    if (i < n) total += a[i];
    if (i >= width) total -= a[i - width];
    if (i >= pad) out.data[r * n + i - pad] = float(total / width);
  }
}""",
        ),
        Task(
            "learned powers",
            "In x, In weight, Out out",
            EACH_ROW + "  for (int64_t i = 0; i < n; ++i) out.data[r * n + i] = std::pow(a[i], weight.data[i]);\n}",
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
            "pixels",
            "In x, In y, int64_t scale, Counts out",
            """\
for (int64_t i = 0; i < x.numel(); ++i) {
  const float square = x.data[i] * x.data[i] + y.data[i] * y.data[i], length = std::sqrt(square) * scale;
  out.data[i] = int32_t(std::ceil(length));
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
            "same lines",
            "Classes x, Classes y, int64_t dim, Truth out",
            """\
const int64_t n = x.size(-1), rows = x.size(0), others = y.size(0);
for (int64_t r = 0; r < rows; ++r)
  for (int64_t j = 0; j < others; ++j) out.data[r * others + j] = !memcmp(x.data + r * n, y.data + j * n, n * 8);""",
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
            "arcosine",
            "In x, Out out",
            "for (int64_t i = 0; i < x.numel(); ++i) out.data[i] = std::acosh(x.data[i]);",
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
}

HEAD = """\
#include "rag_kernel.h"
#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>
typedef rk::Tensor<const float> In;
typedef rk::Tensor<float> Out;
"""
EXTRAS = {
    "Counts": "typedef rk::Tensor<int32_t> Counts;\n",
    "Index": "typedef rk::Tensor<int64_t> Index;\n",
    "Classes": "typedef rk::Tensor<const int64_t> Classes;\n",
    "Bytes": "typedef rk::Tensor<const int8_t> Bytes;\ntypedef rk::Tensor<int8_t> BytesOut;\n",
    "Mask": "typedef rk::Tensor<const bool> Mask;\n",
    "Truth": "typedef rk::Tensor<bool> Truth;\n",
    "HalfOut": """\
typedef rk::Tensor<const rk::bf16> Half;
typedef rk::Tensor<rk::bf16> HalfOut;
static rk::bf16 rounded(float f) {
  uint32_t u;
  memcpy(&u, &f, 4);
  return {uint16_t((u + 0x7fff + ((u >> 16) & 1)) >> 16)};
}
""",
}


def cpp(
    task: str,
    *,
    top: str = "",
    before: str = "",
    body: str | None = None,
    after: str = "",
    compute: str = "compute(ARGS);",
) -> str:
    """Return a kernel-tier source of the task: `top` at file scope, `before` and `after` around the honest computation.

    `body` replaces the honest body; `compute` replaces the call of it. `ARGS` and `PARAMS` stand for the names and the
    declarations of the parameters.
    """
    known = TASKS[task]
    extras = "".join(text for word, text in EXTRAS.items() if word in known.signature)
    inner = indent(known.body if body is None else dedent(body).strip(), "  ")
    steps = [indent(dedent(part).strip(), "  ") for part in (before, compute, after) if part.strip()]
    lines = dedent(top).splitlines(keepends=True)
    includes = "".join(line for line in lines if line.startswith("#include <"))
    top = "".join(line for line in lines if line not in includes)
    text = (
        f"{includes}{HEAD}{extras}static void compute(PARAMS) {{\n{inner}\n}}\n{top}"
        f"static void entry(PARAMS) {{\n" + "\n".join(steps) + "\n}\nRK_EXPORT(forward, entry)\n"
    )
    return text.replace("PARAMS", known.signature).replace("ARGS", known.names)
