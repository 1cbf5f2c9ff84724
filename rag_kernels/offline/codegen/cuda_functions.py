"""CUDA texts of functions that are not CUDA's own: shorter ones, and those that leave out what no result shows.

Comes in: nothing. Goes out: a text for each name, and which others it calls (`math_prelude.CUDA`). What is called near
is exact to sixteen bits at least, for results of sixteen bits and sums of TF32 products, and has no branches, of which
warps take both; double stays with CUDA's own.
"""

EXP_BELOW, EXP_BELOW_OF_BFLOAT16 = "rk_exp_below", "rk_exp_below of bfloat16"  # one name in C: a text has either

TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "rk_exp2_near": (
        "// 2^x by the exponent unit, to some last bits, for results of sixteen bits; below 2^-126 it is zero.\n"
        "__device__ inline float rk_exp2_near(float x) {\n"
        "  float y;\n"
        '  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));\n'
        "  return y;\n"
        "}\n",
        (),
    ),
    "rk_exp2_whole": (
        "__device__ inline float rk_exp2_whole(float x) { return exp2f(x); }\n"
        "__device__ inline double rk_exp2_whole(double x) { return exp2(x); }\n",
        (),
    ),
    "rk_exp_near": (
        "__device__ inline float rk_exp_near(float x) { return rk_exp2_near(x * 1.44269504f); }\n"
        "__device__ inline double rk_exp_near(double x) { return exp(x); }\n",
        ("rk_exp2_near",),
    ),
    "rk_tanh_near": (
        "// tanh(x) to seventeen bits, for results of sixteen: without branches, of which warps take both.\n"
        "__device__ inline float rk_tanh_near(float x) {\n"
        "  const float y = 1.0f - __fdividef(2.0f, rk_exp2_near(2.88539008f * x) + 1.0f);\n"
        "  return fabsf(x) < 0.04f ? x - x * x * x * 0.333333333f : y;\n"
        "}\n"
        "__device__ inline double rk_tanh_near(double x) { return tanh(x); }\n",
        ("rk_exp2_near",),
    ),
    "rk_erf_near": (
        "// erf(x) = 1 - 2^(polynomial of |x|), 1 from 4 on; near zero, where that would cancel, by two terms.\n"
        "__device__ inline float rk_erf_near(float x) {\n"
        "  const float a = fabsf(x);\n"
        "  float p = -1.66906983e-5f;\n"
        "  p = p * a + 4.36439578e-4f;\n"
        "  p = p * a - 4.95761059e-3f;\n"
        "  p = p * a + 3.32085238e-2f;\n"
        "  p = p * a - 1.51493477e-1f;\n"
        "  p = p * a - 9.17654304e-1f;\n"
        "  p = p * a - 1.62794876f;\n"
        "  const float y = 1.0f - rk_exp2_near(p * a);\n"
        "  return a < 0.03f ? x * (1.12837917f - 0.376126389f * a * a) : copysignf(y, x);\n"
        "}\n"
        "__device__ inline double rk_erf_near(double x) { return erf(x); }\n",
        ("rk_exp2_near",),
    ),
    "rk_expm1_near": (
        "// exp(x) - 1; near zero, where that would cancel, by three terms.\n"
        "__device__ inline float rk_expm1_near(float x) {\n"
        "  const float y = rk_exp2_near(x * 1.44269504f) - 1.0f;\n"
        "  return fabsf(x) < 0.05f ? x + x * x * (0.5f + x * 0.166666667f) : y;\n"
        "}\n"
        "__device__ inline double rk_expm1_near(double x) { return expm1(x); }\n",
        ("rk_exp2_near",),
    ),
    "rk_log1p_near": (
        "// log(1 + x) by the exponent unit; near zero, where 1 + x loses bits, by three terms.\n"
        "__device__ inline float rk_log1p_near(float x) {\n"
        "  float y;\n"
        '  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(1.0f + x));\n'
        "  return fabsf(x) < 0.03f ? x - x * x * (0.5f - x * 0.333333333f) : y * 0.693147181f;\n"
        "}\n"
        "__device__ inline double rk_log1p_near(double x) { return log1p(x); }\n",
        (),
    ),
    "rk_softplus_near": (
        "__device__ inline float rk_softplus_near(float x) {\n"
        "  return (x < 0.0f ? 0.0f : x) + rk_log1p_near(rk_exp2_near(fabsf(x) * -1.44269504f));\n"
        "}\n"
        "__device__ inline double rk_softplus_near(double x) { return (x < 0.0 ? 0.0 : x) + log1p(exp(-fabs(x))); }\n",
        ("rk_exp2_near", "rk_log1p_near"),
    ),
    "rk_divide_near": (
        "// x / y to two last bits: without a call, which CUDA's own has for what is tiny or huge, so that a\n"
        "// thread's divisions go on beside each other. The short division takes what is beyond 2^126 for\n"
        "// infinite, and what has fewer bits for zero.\n"
        "__device__ inline float rk_divide_near(float x, float y) {\n"
        "  const float s = fabsf(y) > 0x1p100f ? 0x1p-30f : fabsf(y) < 0x1p-100f ? 0x1p30f : 1.0f;\n"
        "  return __fdividef(x * s, y * s);\n"
        "}\n"
        "__device__ inline double rk_divide_near(double x, double y) { return x / y; }\n",
        (),
    ),
    EXP_BELOW: (
        "// e^(x - top), of the difference: a product of top alone overflows where the least number masks rows\n"
        "__device__ inline float rk_exp_below(float x, float top) {\n"
        "  return rk_exp2_near((x - top) * 1.44269504f);\n"
        "}\n",
        ("rk_exp2_near",),
    ),
    EXP_BELOW_OF_BFLOAT16: (
        "// e^(x - top) of numbers of bfloat16, by one product and sum. log2(e) has sixteen bits: its product\n"
        "// with such a number is exact, so that what equals top gives 1. Half of it where that overflows: what\n"
        "// differs is 0 then.\n"
        "__device__ inline float rk_exp_below(float x, float top) {\n"
        "  const float by = fabsf(top) < 2e38f ? 1.442687988f : 0.721343994f;\n"
        "  return rk_exp2_near(fmaf(x, by, -(top * by)));\n"
        "}\n",
        ("rk_exp2_near",),
    ),
    "rk_ratio": (
        "// x / y by r = 1 / y: a product, corrected by what it leaves. To 256 it rounds to the same integer.\n"
        "// What is infinite, or divided by what is, has no correction.\n"
        "__device__ inline float rk_ratio(float x, float y, float r) {\n"
        "  const float q = x * r, c = fmaf(fmaf(-q, y, x), r, q);\n"
        "  return c == c ? c : q;\n"
        "}\n",
        (),
    ),
    "rk_sqrt": (
        "// sqrt(x), rounded as sqrtf rounds, without its branch for what is small: others would wait for that.\n"
        "__device__ inline float rk_sqrt(float x) {\n"
        "  const bool low = x < 1e-30f;\n"
        "  const float t = low ? x * 18446744073709551616.0f : x;\n"
        "  float y;\n"
        '  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(t));\n'
        "  const float s = t * y, r = fmaf(fmaf(-s, s, t), 0.5f * y, s);\n"
        "  return x == 0.0f || x == INFINITY ? x : low ? r * 2.3283064365386963e-10f : r;\n"
        "}\n"
        "__device__ inline double rk_sqrt(double x) { return sqrt(x); }\n",
        (),
    ),
    "rk_softplus": (
        "// max(x, 0) + log(1 + t), t = exp(-|x|): log((1 + s) / (1 - s)) with s = t / (2 + t), by an odd polynomial.\n"
        "__device__ inline float rk_softplus(float x) {\n"
        "  const float t = expf(-fabsf(x)), s = __fdividef(t, t + 2.0f), q = s * s;\n"
        "  float p = 0.242895547f;\n"
        "  p = p * q + 0.214307417f;\n"
        "  p = p * q + 0.286165967f;\n"
        "  p = p * q + 0.399988884f;\n"
        "  p = p * q + 0.666666755f;\n"
        "  return (x < 0.0f ? 0.0f : x) + fmaf(p * q, s, s + s);\n"
        "}\n"
        "__device__ inline double rk_softplus(double x) { return (x < 0.0 ? 0.0 : x) + log1p(exp(-fabs(x))); }\n",
        (),
    ),
    "rk_rest": (
        """\
template <class A, class B> __device__ inline auto rk_rest(A a, B b) { return a % b; }
// A remainder of 64 bits takes a hundred instructions; by a power of two, which is mostly one number for all, a few.
__device__ inline int64_t rk_rest(int64_t a, int64_t b) {
  if (b <= 0 || (b & (b - 1))) return a % b;
  const int64_t low = a & (b - 1);
  return low && a < 0 ? low - b : low;
}
""",
        (),
    ),
    "rk_logaddexp": (
        "template <class T, class V> __device__ inline T rk_logaddexp(T a, V x) {\n"
        "  const T b = x;\n"
        "  const T high = a < b || b != b ? b : a, low = a < b || b != b ? a : b;\n"
        "  return high - high == 0 && low == low ? high + log1p(exp(V(low - high))) : high;\n}\n",
        (),
    ),
}
