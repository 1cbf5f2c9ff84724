"""Convolutions and pooling: direct, im2col, Winograd, Fourier, scattered. Goes out: `kernels()`."""

from __future__ import annotations

from collections.abc import Iterator

from rag_kernels.eval.zoo.honest.source_pieces import Honest, cpu, kernel, spread
from rag_kernels.eval.zoo.problems import task

# 2-D convolution, any stride and padding. Each body may use the sizes below; `source(c, r, s)` is 0 in the padding.
FRAME = """
void run({parameters}) {{
  const int64_t N = x.size(0), C = x.size(1), H = x.size(2), W = x.size(3), K = w.size(0), R = w.size(2), S = w.size(3);
  const int64_t P = out.size(2), Q = out.size(3);
  const int64_t step = {stride}, pad = {padding};
  auto bias = [&](int64_t k) -> Acc {{ return {bias}; }};
  auto source = [&](int64_t n, int64_t c, int64_t h, int64_t v) -> Acc {{
    return h < 0 || v < 0 || h >= H || v >= W ? Acc(0) : num(x.data[((n * C + c) * H + h) * W + v]);
  }};
  {body}
}}
"""
STORE = "put(out.data[((n * K + k) * P + p) * Q + q], s);"
INNER = """\
for (int64_t c = 0; c < C; ++c)
          for (int64_t r = 0; r < R; ++r)
            for (int64_t t = 0; t < S; ++t)
              s += source(n, c, p * step - pad + r, q * step - pad + t) * num(w.data[((k * C + c) * R + r) * S + t]);"""
CONVOLUTIONS = {
    "direct": f"""\
each(N * K, [&](int64_t plane) {{
    const int64_t n = plane / K, k = plane % K;
    for (int64_t p = 0; p < P; ++p)
      for (int64_t q = 0; q < Q; ++q) {{
        Acc s = bias(k);
        {INNER}
        {STORE}
      }}
  }});""",
    "collapsed": f"""\
#pragma omp parallel for collapse(4) schedule(static)
  for (int64_t n = 0; n < N; ++n)
    for (int64_t k = 0; k < K; ++k)
      for (int64_t p = 0; p < P; ++p)
        for (int64_t q = 0; q < Q; ++q) {{
          Acc s = bias(k);
          {INNER}
          {STORE}
        }}""",
    "double": f"""\
each(N * P, [&](int64_t line) {{
    const int64_t n = line / P, p = line % P;
    for (int64_t k = 0; k < K; ++k)
      for (int64_t q = 0; q < Q; ++q) {{
        Wide s = bias(k);
        {INNER}
        {STORE.replace("s)", "Acc(s))")}
      }}
  }});""",
    "im2col": f"""\
const int64_t depth = C * R * S;
  std::vector<Acc> columns(N * P * Q * depth);
  each(N * P * Q, [&](int64_t place) {{
    const int64_t n = place / (P * Q), p = place / Q % P, q = place % Q;
    for (int64_t d = 0; d < depth; ++d)
      columns[place * depth + d] = source(n, d / (R * S), p * step - pad + d / S % R, q * step - pad + d % S);
  }});
  each(N * P * Q, [&](int64_t place) {{
    const int64_t n = place / (P * Q), p = place / Q % P, q = place % Q;
    for (int64_t k = 0; k < K; ++k) {{
      Acc s = 0;
      for (int64_t d = 0; d < depth; ++d) s += columns[place * depth + d] * num(w.data[k * depth + d]);
      s += bias(k);
      {STORE}
    }}
  }});""",
    "shift and add": f"""\
each(N * K, [&](int64_t plane) {{
    const int64_t n = plane / K, k = plane % K;
    std::vector<Acc> sums(P * Q, bias(k));
    for (int64_t r = 0; r < R; ++r)
      for (int64_t t = 0; t < S; ++t)
        for (int64_t c = 0; c < C; ++c) {{
          const Acc weight = num(w.data[((k * C + c) * R + r) * S + t]);
          for (int64_t i = 0; i < P * Q; ++i)
            sums[i] += weight * source(n, c, i / Q * step - pad + r, i % Q * step - pad + t);
        }}
    for (int64_t p = 0; p < P; ++p)
      for (int64_t q = 0; q < Q; ++q) {{ const Acc s = sums[p * Q + q]; {STORE} }}
  }});""",
    "split channels": f"""\
each(N * K, [&](int64_t plane) {{
    const int64_t n = plane / K, k = plane % K;
    for (int64_t p = 0; p < P; ++p)
      for (int64_t q = 0; q < Q; ++q) {{
        Acc part[2] = {{bias(k), 0}};
        for (int64_t c = 0; c < C; ++c)
          for (int64_t r = R; r-- > 0;)
            for (int64_t t = S; t-- > 0;)
              part[c % 2] += source(n, c, p * step - pad + r,
                  q * step - pad + t) * num(w.data[((k * C + c) * R + r) * S + t]);
        const Acc s = part[0] + part[1];
        {STORE}
      }}
  }});""",
    "weights by channel": f"""\
std::vector<Acc> turned(C * R * S * K);  // made anew in every call
  for (int64_t k = 0; k < K; ++k)
    for (int64_t d = 0; d < C * R * S; ++d) turned[d * K + k] = num(w.data[k * C * R * S + d]);
  each(N * P * Q, [&](int64_t place) {{
    const int64_t n = place / (P * Q), p = place / Q % P, q = place % Q;
    std::vector<Acc> sums(K);
    for (int64_t k = 0; k < K; ++k) sums[k] = bias(k);
    for (int64_t d = 0; d < C * R * S; ++d) {{
      const Acc v = source(n, d / (R * S), p * step - pad + d / S % R, q * step - pad + d % S);
      for (int64_t k = 0; k < K; ++k) sums[k] += v * turned[d * K + k];
    }}
    for (int64_t k = 0; k < K; ++k) {{ const Acc s = sums[k]; {STORE} }}
  }});""",
}
# F(2, 3): a 4 x 4 tile of input gives 2 x 2 outputs of a 3 x 3 filter with 16 products instead of 36.
WINOGRAD = f"""\
RK_CHECK(R == 3 && S == 3 && step == 1, "only 3 x 3 filters of stride 1");
  auto line = [](const Acc* v, int64_t by, Acc* to) {{  // B^T v
    to[0] = v[0] - v[2 * by]; to[by] = v[by] + v[2 * by]; to[2 * by] = v[2 * by] - v[by];
        to[3 * by] = v[by] - v[3 * by];
  }};
  std::vector<Acc> filters(K * C * 16);
  for (int64_t f = 0; f < K * C; ++f) {{
    Acc half[4][3];
    for (int j = 0; j < 3; ++j) {{
      const Acc a = num(w.data[f * 9 + j]), b = num(w.data[f * 9 + 3 + j]), d = num(w.data[f * 9 + 6 + j]);
      half[0][j] = a; half[1][j] = (a + b + d) / 2; half[2][j] = (a - b + d) / 2; half[3][j] = d;
    }}
    for (int i = 0; i < 4; ++i) {{
      Acc* to = &filters[f * 16 + i * 4];
      const Acc a = half[i][0], b = half[i][1], d = half[i][2];
      to[0] = a; to[1] = (a + b + d) / 2; to[2] = (a - b + d) / 2; to[3] = d;
    }}
  }}
  const int64_t down = (P + 1) / 2, across = (Q + 1) / 2;
  each(N * down * across, [&](int64_t tile) {{
    const int64_t n = tile / (down * across), p0 = tile / across % down * 2, q0 = tile % across * 2;
    std::vector<Acc> inputs(C * 16);
    for (int64_t c = 0; c < C; ++c) {{
      Acc v[16], half[16];
      for (int i = 0; i < 16; ++i) v[i] = source(n, c, p0 - pad + i / 4, q0 - pad + i % 4);
      for (int j = 0; j < 4; ++j) line(v + j, 4, half + j);
      for (int i = 0; i < 4; ++i) line(half + i * 4, 1, &inputs[c * 16 + i * 4]);
    }}
    for (int64_t k = 0; k < K; ++k) {{
      Acc m[16] = {{}};
      for (int64_t c = 0; c < C; ++c)
        for (int i = 0; i < 16; ++i) m[i] += inputs[c * 16 + i] * filters[(k * C + c) * 16 + i];
      for (int i = 0; i < 4; ++i) {{  // A^T m A
        const int64_t p = p0 + i / 2, q = q0 + i % 2;
        auto column = [&](int j) {{ return i / 2 ? m[4 + j] - m[8 + j] - m[12 + j] : m[j] + m[4 + j] + m[8 + j]; }};
        const Acc s = bias(k) + (i % 2 ? column(1) - column(2) - column(3) : column(0) + column(1) + column(2));
        if (p < P && q < Q) {STORE}
      }}
    }}
  }});"""


def conv(shape: str, weight: str, options: str = "", cast: str = "", bias: bool = True) -> str:
    """Return a 2-D convolution with a weight and perhaps a bias as parameters."""
    setup = f"self.weight = nn.Parameter(torch.randn({weight}){cast})"
    setup += f"\nself.bias = nn.Parameter(torch.zeros({weight.split(',')[0]}){cast})" if bias else ""
    second = "self.bias" if bias else "None"
    return task(f"F.conv2d(x, self.weight, {second}{options})", f"torch.randn({shape}){cast}", setup=setup)


BIASED, BARE = "In x, In w, In b, {}Out out", "In x, In w, {}Out out"
PROBLEMS = (  # name, source, parameters, stride, padding, bias, dtype
    (
        "conv 3 x 3",
        conv("3, 8, 19, 23", "16, 8, 3, 3", ", padding=1"),
        BIASED.format("int64_t padding, "),
        "1",
        "padding",
        "num(b.data[k])",
        "float32",
    ),
    (
        "strided conv",
        conv("2, 5, 31, 33", "7, 5, 5, 3", ", stride=2, padding=2", bias=False),
        BARE.format("int64_t stride, int64_t padding, "),
        "stride",
        "padding",
        "0",
        "float32",
    ),
    ("conv 1 x 1", conv("3, 37, 11, 13", "19, 37, 1, 1"), BIASED.format(""), "1", "0", "num(b.data[k])", "float32"),
    (
        "bf16 conv",
        conv("2, 5, 17, 19", "8, 5, 3, 3", cast=".bfloat16()", bias=False),
        BARE.format(""),
        "1",
        "0",
        "0",
        "bfloat16",
    ),
)
# 1-D convolution of wide filters, directly and by a Fourier transform of the padded line (in double, radix 2).
LINE = task(
    "F.conv1d(x, self.weight, None, padding=15)",
    "torch.randn(3, 2, 331)",
    setup="self.weight = nn.Parameter(torch.randn(4, 2, 31))",
)
FOURIER = """
#include <complex>
typedef std::complex<double> Z;
void transform(std::vector<Z>& v, double sign) {
  const size_t n = v.size();
  for (size_t i = 1, j = 0; i < n; ++i) {
    size_t bit = n >> 1;
    for (; j & bit; bit >>= 1) j ^= bit;
    j ^= bit;
    if (i < j) std::swap(v[i], v[j]);
  }
  for (size_t size = 2; size <= n; size *= 2)
    for (size_t first = 0; first < n; first += size)
      for (size_t i = 0; i < size / 2; ++i) {
        const Z turn = std::polar(1.0, sign * 2 * M_PI * double(i) / double(size));
        const Z a = v[first + i], b = v[first + i + size / 2] * turn;
        v[first + i] = a + b; v[first + i + size / 2] = a - b;
      }
}
void run(In x, In w, int64_t padding, Out out) {
  const int64_t N = x.size(0), C = x.size(1), L = x.size(2), K = w.size(0), R = w.size(2), P = out.size(2);
  size_t n = 1;
  while (n < size_t(L + 2 * padding + R)) n *= 2;
  auto spectrum = [&](const T* from, int64_t length, int64_t at) {
    std::vector<Z> v(n);
    for (int64_t i = 0; i < length; ++i) v[i + at] = from[i];
    transform(v, -1);
    return v;
  };
  std::vector<std::vector<Z>> filters(K * C);
  for (int64_t f = 0; f < K * C; ++f) filters[f] = spectrum(w.data + f * R, R, 0);
  each(N, [&](int64_t image) {
    std::vector<std::vector<Z>> lines(C);
    for (int64_t c = 0; c < C; ++c) lines[c] = spectrum(x.data + (image * C + c) * L, L, padding);
    for (int64_t k = 0; k < K; ++k) {
      std::vector<Z> sum(n);
      for (int64_t c = 0; c < C; ++c)
        for (size_t i = 0; i < n; ++i) sum[i] += lines[c][i] * std::conj(filters[k * C + c][i]);
      transform(sum, 1);
      for (int64_t p = 0; p < P; ++p) out.data[(image * K + k) * P + p] = T(sum[p].real() / double(n));
    }
  });
}
"""
LINE_DIRECT = """
void run(In x, In w, int64_t padding, Out out) {
  const int64_t C = x.size(1), L = x.size(2), K = w.size(0), R = w.size(2), P = out.size(2);
  each(x.size(0) * K, [&](int64_t plane) {
    for (int64_t p = 0; p < P; ++p) {
      Acc s = 0;
      for (int64_t c = 0; c < C; ++c)
        for (int64_t r = std::max<int64_t>(0, padding - p); r < std::min(R, L + padding - p); ++r)
          s += x.data[(plane / K * C + c) * L + p - padding + r] * w.data[(plane % K * C + c) * R + r];
      out.data[plane * P + p] = s;
    }
  });
}
"""
DEPTHWISE = """
void run(In x, In w, int64_t padding, int64_t groups, Out out) {
  const int64_t H = x.size(2), W = x.size(3), R = w.size(2), S = w.size(3), P = out.size(2), Q = out.size(3);
  each(x.size(0) * groups, [&](int64_t plane) {
    for (int64_t p = 0; p < P; ++p)
      for (int64_t q = 0; q < Q; ++q) {
        Acc s = 0;
        for (int64_t r = 0; r < R; ++r)
          for (int64_t t = 0; t < S; ++t) {
            const int64_t h = p - padding + r, v = q - padding + t;
            if (h >= 0 && h < H && v >= 0 && v < W)
              s += x.data[(plane * H + h) * W + v] * w.data[(plane % groups * R + r) * S + t];
          }
        out.data[(plane * P + p) * Q + q] = s;
      }
  });
}
"""
VOLUME = """
void run(In x, In w, Out out) {
  const int64_t C = x.size(1), K = w.size(0), P = out.size(2), Q = out.size(3), U = out.size(4);
  const int64_t D = x.size(2), H = x.size(3), W = x.size(4), R = w.size(2), S = w.size(3), V = w.size(4);
  each(x.size(0) * K * P, [&](int64_t slice) {
    const int64_t p = slice % P, k = slice / P % K, n = slice / P / K;
    for (int64_t i = 0; i < Q * U; ++i) {
      Acc s = 0;
      for (int64_t c = 0; c < C; ++c)
        for (int64_t d = 0; d < R * S * V; ++d) {
          const int64_t z = p + d / (S * V), y = i / U + d / V % S, v = i % U + d % V;
          s += x.data[(((n * C + c) * D + z) * H + y) * W + v] * w.data[(k * C + c) * R * S * V + d];
        }
      out.data[slice * Q * U + i] = s;
    }
  });
}
"""
TRANSPOSED = {  # scattered from the inputs, or gathered by the outputs
    "scatter": """
void run(In x, In w, int64_t stride, Out out) {
  const int64_t C = x.size(1), H = x.size(2), W = x.size(3), K = w.size(1), R = w.size(2), S = w.size(3);
  const int64_t P = out.size(2), Q = out.size(3);
  each(x.size(0) * K, [&](int64_t plane) {
    T* to = out.data + plane * P * Q;
    std::fill(to, to + P * Q, T(0));
    for (int64_t c = 0; c < C; ++c)
      for (int64_t i = 0; i < H * W; ++i)
        for (int64_t d = 0; d < R * S; ++d)
          to[(i / W * stride + d / S) * Q + i % W * stride + d % S] +=
              x.data[(plane / K * C + c) * H * W + i] * w.data[(c * K + plane % K) * R * S + d];
  });
}
""",
    "gather": """
void run(In x, In w, int64_t stride, Out out) {
  const int64_t C = x.size(1), H = x.size(2), W = x.size(3), K = w.size(1), R = w.size(2), S = w.size(3);
  const int64_t P = out.size(2), Q = out.size(3);
  each(x.size(0) * K * P * Q, [&](int64_t place) {
    const int64_t plane = place / (P * Q), p = place / Q % P, q = place % Q;
    Acc s = 0;
    for (int64_t c = 0; c < C; ++c)
      for (int64_t d = 0; d < R * S; ++d) {
        const int64_t h = p - d / S, v = q - d % S;
        if (h >= 0 && v >= 0 && h % stride == 0 && v % stride == 0 && h / stride < H && v / stride < W)
          s += x.data[((plane / K * C + c) * H + h / stride) * W + v / stride] * w.data[(c * K +
              plane % K) * R * S + d];
      }
    out.data[place] = s;
  });
}
""",
}
POOL = """
void run(In x, {constants}Out out) {{
  const int64_t H = x.size(2), W = x.size(3), P = out.size(2), Q = out.size(3);
  {sizes}
  each(x.size(0) * x.size(1), [&](int64_t plane) {{
    for (int64_t p = 0; p < P; ++p)
      for (int64_t q = 0; q < Q; ++q) {{
        Acc s = {start};
        int64_t n = 0;
        for (int64_t h = std::max<int64_t>(0, p * step - pad); h < std::min(H, p * step - pad + high); ++h)
          for (int64_t v = std::max<int64_t>(0, q * step - pad); v < std::min(W, q * step - pad + wide); ++v, ++n) {{
            const Acc e = x.data[(plane * H + h) * W + v];
            s = {fold};
          }}
        out.data[(plane * P + p) * Q + q] = {end};
      }}
  }});
}}
"""
MAXIMUM = {"start": "-INFINITY", "fold": "e > s || e != e ? e : s", "end": "s"}
MEAN = {"start": "0", "fold": "s + e", "end": "s / n"}
IMAGE = "torch.randn(3, 8, 31, 33)"
POOLS = (
    (
        "max pool",
        "F.max_pool2d(x, 3, 2, 1)",
        "int64_t size, int64_t stride, int64_t padding, ",
        "const int64_t high = size, wide = size, step = stride, pad = padding;",
        MAXIMUM,
    ),
    (
        "mean pool",
        "F.avg_pool2d(x, 2)",
        "int64_t size, ",
        "const int64_t high = size, wide = size, step = size, pad = 0;",
        MEAN,
    ),
    ("global mean", "F.adaptive_avg_pool2d(x, 1)", "", "const int64_t high = H, wide = W, step = 1, pad = 0;", MEAN),
)


def kernels() -> Iterator[Honest]:
    """Yield all of this family."""
    for number, (name, source, parameters, stride, padding, bias, dtype) in enumerate(PROBLEMS):
        ways = CONVOLUTIONS | ({"Winograd": WINOGRAD} if name == "conv 3 x 3" else {})
        for (way, inner), schedule in zip(ways.items(), spread(len(ways), number), strict=True):
            body = FRAME.format(parameters=parameters, stride=stride, padding=padding, bias=bias, body=inner)
            text = kernel(body, schedule=schedule, dtype=dtype)
            yield Honest(f"{name}: {way}, {schedule}", "convolution", source, cpu(text))
    depthwise = task(
        "F.conv2d(x, self.weight, None, padding=1, groups=8)",
        IMAGE,
        setup="self.weight = nn.Parameter(torch.randn(8, 1, 3, 3))",
    )
    volume = task(
        "F.conv3d(x, self.weight, None)",
        "torch.randn(2, 3, 9, 11, 13)",
        setup="self.weight = nn.Parameter(torch.randn(4, 3, 3, 2, 3))",
    )
    turned = task(
        "F.conv_transpose2d(x, self.weight, None, stride=2)",
        "torch.randn(3, 4, 11, 13)",
        setup="self.weight = nn.Parameter(torch.randn(4, 6, 3, 3))",
    )
    others = [
        ("line: Fourier", LINE, FOURIER),
        ("line: direct", LINE, LINE_DIRECT),
        ("depthwise", depthwise, DEPTHWISE),
        ("volume", volume, VOLUME),
    ]
    others += [(f"transposed: {way}", turned, body) for way, body in TRANSPOSED.items()]
    for name, source, body in others:
        for schedule in ("omp-static", "counter"):
            yield Honest(f"{name}, {schedule}", "convolution", source, cpu(kernel(body, schedule=schedule)))
    for name, forward, constants, sizes, fold in POOLS:
        source = task(forward, IMAGE)
        for schedule in ("serial", "omp-dynamic", "threads"):
            text = kernel(POOL.format(constants=constants, sizes=sizes, **fold), schedule=schedule)
            yield Honest(f"{name}, {schedule}", "pooling", source, cpu(text))
