"""Functions that generated kernels may call, by name; only those used are printed.

What an operator's text takes from C's library is here by itself (`operator_texts._libm`). The C++ ones are
straight-line so that `#pragma omp simd` can vectorise them, and within a few ulp in float; the rare ones call libm. The
CUDA ones call CUDA's own functions, built without fast-math.
"""

from collections.abc import Collection, Iterable

from rag_kernels.eval.records import Backend
from rag_kernels.offline.codegen import cpp_functions, cuda_functions, reduction_texts
from rag_kernels.offline.codegen.c_types import EIGHT_BITS, stored_type
from rag_kernels.offline.codegen.operator_texts import C, Form, text_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF

LIBM = {text.libm: operator.traits.arity for operator, text in C.items() if text.libm}
"""Functions of C's library, and how many operands they have: whatever an operator's text names."""
NAMES = sorted(LIBM, key=lambda name: (LIBM[name], name))


def _wrapped(name: str, *, cuda: bool) -> tuple[str, tuple[str, ...]]:
    """Return the text of `rk_NAME`, which is that of C's library, for float and double."""
    head, names = "__device__ inline" if cuda else "inline", "xy"[: LIBM[name]]
    lines = []
    for c_type, function in (("float", f"{name}f"), ("double", name)):
        taken = ", ".join(f"{c_type} {x}" for x in names)
        called = f"{function if cuda else f'std::{name}'}({', '.join(names)})"
        lines.append(f"{head} {c_type} rk_{name}({taken}) {{ return {called}; }}\n")
    return "".join(lines), ()


def float8_texts(head: str, copy: str) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return functions that round to eight bits and widen again, and those between numbers and their bits."""
    texts = dict[str, tuple[str, tuple[str, ...]]]()
    for name in EIGHT_BITS.values():
        bits = f"const auto y = rk::to_{name}(x); uint8_t bits; {copy}(&bits, &y, 1); return bits;"
        made = f"auto y = rk::to_{name}(0.0f); {copy}(&y, &x, 1); return float(y);"
        texts[f"rk_{name}"] = f"{head} float rk_{name}(float x) {{ return float(rk::to_{name}(x)); }}\n", ()
        texts[f"rk_bits_of_{name}"] = f"{head} uint8_t rk_bits_of_{name}(float x) {{ {bits} }}\n", ()
        texts[f"rk_{name}_of_bits"] = f"{head} float rk_{name}_of_bits(uint8_t x) {{ {made} }}\n", ()
    return texts


def bit_texts(head: str, copy: str, backend: Backend) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return functions between numbers of sixteen and 32 bits and their bits."""
    texts = dict[str, tuple[str, tuple[str, ...]]]()
    for dtype, bits in (("float16", "int16_t"), ("bfloat16", "int16_t"), ("float32", "int32_t")):
        given = f"{stored_type(dtype, backend)} y; y = x; {bits} i; {copy}(&i, &y, sizeof i); return i;"
        made = f"{stored_type(dtype, backend)} y; {copy}(&y, &x, sizeof x); return y;"
        texts[f"rk_bits_of_{dtype}"] = f"{head} {bits} rk_bits_of_{dtype}(float x) {{ {given} }}\n", ()
        texts[f"rk_{dtype}_of_bits"] = f"{head} float rk_{dtype}_of_bits({bits} x) {{ {made} }}\n", ()
    return texts


CPP: dict[str, tuple[str, tuple[str, ...]]] = {
    "rk_logaddexp": (
        "template <class T, class V> inline T rk_logaddexp(T a, V x) {\n"
        "  const T b = x;\n"
        "  const T high = a < b || b != b ? b : a, low = a < b || b != b ? a : b;\n"
        "  return high - high == 0 && low == low ? high + std::log1p(std::exp(V(low - high))) : high;\n}\n",
        (),
    ),
    "rk_abs": (
        "inline float rk_abs(float x) { return __builtin_fabsf(x); }\n"
        "inline double rk_abs(double x) { return __builtin_fabs(x); }\n"
        "inline int64_t rk_abs(int64_t x) { return x < 0 ? -x : x; }\n",
        (),
    ),
    "rk_bits": (
        "inline float rk_bits(int32_t i) { float f; __builtin_memcpy(&f, &i, 4); return f; }\n"
        "inline int32_t rk_int(float f) { int32_t i; __builtin_memcpy(&i, &f, 4); return i; }\n",
        (),
    ),
    "rk_small_exp": (
        """// exp(r), |r| <= log(2)/2, by a polynomial.
inline float rk_small_exp(float r) {
  float p = 0.00138145401f;
  p = p * r + 0.0083687452f;
  p = p * r + 0.0416683908f;
  p = p * r + 0.166665204f;
  p = p * r + 0.499999934f;
  p = p * r + 1.0f;
  return p * r + 1.0f;
}
""",
        (),
    ),
    "rk_power": (
        """// 2^n * exp(r) up to what overflows; n moves from the low bits of z to the exponent.
inline float rk_power(float z, float r) {
  const float p = rk_small_exp(r);
  return (p + p) * rk_bits(int32_t((uint32_t(rk_int(z)) << 23) + (126u << 23)));
}
""",
        ("rk_bits", "rk_small_exp"),
    ),
    "rk_shifted": (
        """// 2^n * p, a normal number; n moves from the low bits of z to the exponent.
inline float rk_shifted(float z, float p) {
  return rk_bits(int32_t((uint32_t(rk_int(z)) << 23) + uint32_t(rk_int(p))));
}
""",
        ("rk_bits",),
    ),
    "rk_exp": (
        """// exp(x): adding 1.5 * 2^23 rounds to n and leaves n in the low bits.
// Results below the smallest normal number become zero.
inline float rk_exp(float x) {
  const float z = x * 1.442695041f + 12582912.0f, n = z - 12582912.0f;
  const float y = rk_shifted(z, rk_small_exp((x - n * 0.693359375f) + n * 2.12194440e-4f));
  const float h = x < 88.722839f ? y : x + INFINITY;
  return x < -87.3f ? 0.0f : h;
}
inline double rk_exp(double x) { return std::exp(x); }
""",
        ("rk_shifted", "rk_small_exp"),
    ),
    "rk_exp2": (
        """// 2^x, as rk_exp has it.
inline float rk_exp2(float x) {
  const float z = x + 12582912.0f, p = rk_small_exp2(x - (z - 12582912.0f));
  const float y = rk_shifted(z, p), h = x < 128.0f ? y : x + INFINITY;
  return x < -126.0f ? 0.0f : h;
}
inline double rk_exp2(double x) { return std::exp2(x); }
""",
        ("rk_shifted", "rk_small_exp2"),
    ),
    "rk_exp2_whole": (
        """// 2^x of a whole number, by two factors, of which both are normal.
inline float rk_exp2_whole(float x) {
  const int32_t n = int32_t(x < -150.0f ? -150.0f : x < 128.0f ? x : 128.0f), half = n >> 1;
  return rk_bits((half + 127) << 23) * rk_bits((n - half + 127) << 23);
}
inline double rk_exp2_whole(double x) { return std::exp2(x); }
""",
        ("rk_bits",),
    ),
    "rk_small_exp2": (
        """// 2^r, |r| <= 1/2, by a polynomial.
inline float rk_small_exp2(float r) {
  float p = 0.000153533621f;
  p = p * r + 0.00133988746f;
  p = p * r + 0.00961843736f;
  p = p * r + 0.0555033247f;
  p = p * r + 0.240226479f;
  p = p * r + 0.693147203f;
  return p * r + 1.0f;
}
""",
        (),
    ),
    "rk_sqrt": (
        """// sqrt(x) = x * rsqrt(x) by Newton steps from a guess in integer arithmetic, within 0.7 ulp: libm's
// would set errno, and so would not vectorise.
inline float rk_sqrt(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float w = tiny ? x * 16777216.0f : x;
  float y = rk_bits(int32_t(0x5f375a86u - uint32_t(rk_int(w) >> 1)));
  y = y * (1.5f - 0.5f * w * y * y);
  y = y * (1.5f - 0.5f * w * y * y);
  float s = w * y;
  s = s + 0.5f * y * (w - s * s);
  s = tiny ? s * 2.44140625e-4f : s;
  s = x == INFINITY ? x : s;
  return x < 0.0f ? NAN : s;
}
inline double rk_sqrt(double x) { return std::sqrt(x); }
""",
        ("rk_bits",),
    ),
    "rk_expm1": (
        """// exp(x) - 1 without cancellation: a Taylor polynomial near zero.
inline float rk_expm1(float x) {
  float p = 1.0f / 40320;
  p = p * x + 1.0f / 5040;
  p = p * x + 1.0f / 720;
  p = p * x + 1.0f / 120;
  p = p * x + 1.0f / 24;
  p = p * x + 1.0f / 6;
  p = p * x + 0.5f;
  p = p * x * x + x;
  const float e = rk_exp(x) - 1.0f;
  return rk_abs(x) < 0.4f ? p : e;
}
inline double rk_expm1(double x) { return std::expm1(x); }
""",
        ("rk_exp", "rk_abs"),
    ),
    "rk_wave": (
        """// 2/pi, by which x becomes quarters of a turn: for each exponent the bits that count, without whole turns.
// Products with the first 28 of them are exact.
struct rk_Turns { double high[106], low[106]; };
constexpr rk_Turns rk_turns_of() {
  constexpr uint32_t bits[] = {0xa2f9836e, 0x4e441529, 0xfc2757d1, 0xf534ddc0, 0xdb629599, 0x3c439041};
  rk_Turns made{};
  double scale = 4;
  for (int e = 0; e < 105; ++e, scale /= 2) {
    double part = scale;
    for (int n = 0; n < 81; ++n) {
      const int at = e - 2 + n;
      part /= 2;
      const double bit = at >= 0 && bits[at / 32] >> (31 - at % 32) & 1 ? part : 0;
      (n < 28 ? made.high[e] : made.low[e]) += bit;
    }
  }
  made.high[105] = NAN;
  return made;
}
constexpr rk_Turns rk_turns = rk_turns_of();
// sin(x), or with quarter = 1 cos(x): polynomials between -pi/4 and pi/4.
inline float rk_wave(float x, int32_t quarter) {
  const int32_t exponent = (rk_int(x) >> 23 & 255) - 150, e = exponent < 0 ? 0 : exponent;
  const double high = double(x) * rk_turns.high[e], low = double(x) * rk_turns.low[e];
  const double whole = (high + low + 6755399441055744.0) - 6755399441055744.0;
  const float r = float(((high - whole) + low) * 1.5707963267948966), s = r * r;
  const int32_t k = int32_t(whole) + quarter;
  float p = -1.9515295891e-4f;
  p = p * s + 8.3321608736e-3f;
  p = p * s - 1.6666654611e-1f;
  p = p * s * r + r;
  float q = 2.443315711809948e-5f;
  q = q * s - 1.388731625493765e-3f;
  q = q * s + 4.166664568298827e-2f;
  q = q * s * s - 0.5f * s + 1.0f;
  const float y = k & 1 ? q : p;
  return rk_bits(rk_int(y) ^ (k << 30 & int32_t(0x80000000)));
}
""",
        ("rk_bits",),
    ),
    "rk_sin": (
        "inline float rk_sin(float x) { return x == 0.0f ? x : rk_wave(x, 0); }\n"
        "inline double rk_sin(double x) { return std::sin(x); }\n",
        ("rk_wave",),
    ),
    "rk_cos": (
        "inline float rk_cos(float x) { return rk_wave(x, 1); }\n"
        "inline double rk_cos(double x) { return std::cos(x); }\n",
        ("rk_wave",),
    ),
    "rk_fmod": (
        """// What x / y leaves, exactly. By a power of two without a call, so that loops become vectors; else in
// double where the quotient is below 2^27, which no rounding takes to the next whole number.
inline float rk_fmod(float x, float y) {
  if ((rk_int(y) & 0x7fffff) == 0 && (rk_int(y) >> 23 & 255) - 1u < 254u) {
    const float t = x / y;  // where it overflows, x is a multiple of y
    return __builtin_copysignf(t - t == 0.0f ? x - __builtin_truncf(t) * y : x - x, x);
  }
  const double a = x, b = y, n = __builtin_trunc(a / b);
  if (!(n < 134217728.0 && n > -134217728.0)) return std::fmod(x, y);
  return n == 0.0 ? x : __builtin_copysignf(float(a - n * b), x);  // y may be infinite
}
inline double rk_fmod(double x, double y) { return std::fmod(x, y); }
""",
        ("rk_bits",),
    ),
    "rk_rest": (
        """template <class A, class B> inline auto rk_rest(A a, B b) { return a % b; }
// In double, of which there are vectors: exact, since a quotient of 32 bits is never as near to a whole number.
inline int32_t rk_rest(int32_t a, int32_t b) {
  if (__builtin_constant_p(b)) return a % b;  // a multiplication
  return int32_t(double(a) - __builtin_trunc(double(a) / double(b)) * double(b));
}
""",
        (),
    ),
    "rk_quotient": (
        """// In double, as rk_rest.
inline int32_t rk_quotient(int32_t a, int32_t b) {
  return __builtin_constant_p(b) ? a / b : int32_t(double(a) / double(b));
}
""",
        (),
    ),
    "rk_tanh": (
        """// tanh: an odd polynomial near zero, 1 - 2 / (exp(2|x|) + 1) elsewhere.
inline float rk_tanh(float x) {
  const float a = rk_abs(x), s = x * x;
  float p = -5.70498872745e-3f;
  p = p * s + 2.06390887954e-2f;
  p = p * s - 5.37397155531e-2f;
  p = p * s + 1.33314422036e-1f;
  p = p * s - 3.33332819422e-1f;
  p = p * s * x + x;
  const float t = 1.0f - 2.0f / (rk_exp(2.0f * a) + 1.0f);
  return a < 0.625f ? p : (x < 0.0f ? -t : t);
}
inline double rk_tanh(double x) { return std::tanh(x); }
""",
        ("rk_exp", "rk_abs"),
    ),
    "rk_erf": (
        """// erf: an odd polynomial near zero, 1 - exp(polynomial) elsewhere.
inline float rk_erf(float x) {
  const float a = rk_abs(x), s = x * x;
  float p = -5.96761703e-4f;
  p = p * s + 4.99119423e-3f;
  p = p * s - 2.67681349e-2f;
  p = p * s + 1.12819925e-1f;
  p = p * s - 3.76125336e-1f;
  p = p * s + 1.28379166e-1f;
  p = p * x + x;
  float q = -1.72853470e-5f * a + 3.83197126e-4f;
  q = q * s + (-3.88396438e-3f * a + 2.42546219e-2f);
  q = q * a - 1.06777877e-1f;
  q = q * a - 6.34846687e-1f;
  q = q * a - 1.28717512e-1f;
  q = q * a - a;
  const float t = 1.0f - rk_exp(q);
  return a > 0.927734375f ? (x < 0.0f ? -t : t) : p;
}
inline double rk_erf(double x) { return std::erf(x); }
""",
        ("rk_exp", "rk_abs"),
    ),
    "rk_log_part": (
        """// n log(2) + log(1 + m), m near 0, by a polynomial.
inline float rk_log_part(float n, float m) {
  const float s = m * m;
  float p = 7.0376836292e-2f;
  p = p * m - 1.1514610310e-1f;
  p = p * m + 1.1676998740e-1f;
  p = p * m - 1.2420140846e-1f;
  p = p * m + 1.4249322787e-1f;
  p = p * m - 1.6668057665e-1f;
  p = p * m + 2.0000714765e-1f;
  p = p * m - 2.4999993993e-1f;
  p = p * m + 3.3333331174e-1f;
  const float y = m * s * p + n * -2.12194440e-4f - 0.5f * s;
  return (m + y) + n * 0.693359375f;
}
""",
        (),
    ),
    "rk_log_normal": (
        """// log(x) of a positive normal x = 2^n m, m near 1.
inline float rk_log_normal(float x) {
  const uint32_t bits = rk_int(x), shifted = bits - 0x3f3504f3u;
  return rk_log_part(float(int32_t(shifted) >> 23), rk_bits(int32_t(bits - (shifted & 0xff800000u))) - 1.0f);
}
""",
        ("rk_bits", "rk_log_part"),
    ),
    "rk_log": (
        """// log(x) for every x: denormals are scaled up first, then the special values are put in place.
inline float rk_log(float x) {
  const bool tiny = x < 1.17549435e-38f;
  float y = rk_log_normal(tiny ? x * 8388608.0f : x) - (tiny ? 15.942385f : 0.0f);
  y = x == 0.0f ? -INFINITY : y;
  y = x < 0.0f ? NAN : y;
  return x < INFINITY ? y : x;
}
inline double rk_log(double x) { return std::log(x); }
""",
        ("rk_log_normal",),
    ),
    "rk_log_sum": (
        """// log(u + d) of a normal u = 2^n m > 0, m near 1, and what was lost when it was rounded: d joins m.
inline float rk_log_sum(float u, float d) {
  const uint32_t bits = rk_int(u), shifted = bits - 0x3f3504f3u, n = shifted & 0xff800000u;
  const float m = d * rk_bits(int32_t(0x60000000u - n)) * 0x1p-65f + (rk_bits(int32_t(bits - n)) - 1.0f);
  return rk_log_part(float(int32_t(shifted) >> 23), m);
}
""",
        ("rk_bits", "rk_log_part"),
    ),
    "rk_log1p": (
        """// log(1 + x), with what 1 + x loses.
inline float rk_log1p(float x) {
  const float u = 1.0f + x;
  float y = rk_log_sum(u, x - (u - 1.0f));
  y = x == -1.0f ? -INFINITY : y;
  y = x < -1.0f ? NAN : y;
  return x < INFINITY ? y : x;
}
inline double rk_log1p(double x) { return std::log1p(x); }
""",
        ("rk_log_sum",),
    ),
    "rk_softplus": (
        """// log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|)): nothing overflows.
inline float rk_softplus(float x) {
  const float t = rk_exp(-rk_abs(x)), u = 1.0f + t;
  return (x < 0.0f ? 0.0f : x) + rk_log_sum(u, t - (u - 1.0f));
}
inline double rk_softplus(double x) { return (x < 0 ? 0 : x) + std::log1p(std::exp(-rk_abs(x))); }
""",
        ("rk_exp", "rk_abs", "rk_log_sum"),
    ),
}

CPP |= cpp_functions.TEXTS
CPP |= {f"rk_{name}": _wrapped(name, cuda=False) for name in NAMES if f"rk_{name}" not in CPP}
CPP |= {
    f"rk_{dtype}": (f"inline float rk_{dtype}(float x) {{ {stored_type(dtype, 'cpu')} y; y = x; return y; }}\n", ())
    for dtype in sorted(HALF)
}
CPP |= float8_texts("inline", "__builtin_memcpy") | bit_texts("inline", "__builtin_memcpy", "cpu")

CUDA: dict[str, tuple[str, tuple[str, ...]]] = {
    "rk_abs": (
        "__device__ inline float rk_abs(float x) { return fabsf(x); }\n"
        "__device__ inline double rk_abs(double x) { return fabs(x); }\n"
        "__device__ inline int64_t rk_abs(int64_t x) { return x < 0 ? -x : x; }\n",
        (),
    ),
    **{f"rk_{name}": _wrapped(name, cuda=True) for name in NAMES},
}
CUDA |= {
    f"rk_{dtype}": (
        f"__device__ inline float rk_{dtype}(float x) {{ {stored_type(dtype, 'cuda')} y; y = x; return y; }}\n",
        (),
    )
    for dtype in sorted(HALF)
}
CUDA |= float8_texts("__device__ inline", "memcpy") | bit_texts("__device__ inline", "memcpy", "cuda")
CUDA |= cuda_functions.TEXTS


def called(values: Iterable[ir.Value], form: Form) -> set[str]:
    """Return the functions that the texts of these values call, and of all that they are made of."""
    calls = set[str]()
    for value in ir.walk(*values):
        if isinstance(value, ir.Op) and value.operator in C:
            calls.add(text_of(value.operator, value.dtype, value.args[0].dtype, form).calls)
        elif isinstance(value, ir.Reduce | ir.Scan):
            calls.add(reduction_texts.C[value.kind].calls)
    return calls


GRADUAL = CPP | {
    "rk_exp": (
        """// exp(x), also below the smallest normal number: adding 1.5 * 2^23 rounds to n and leaves n in the low bits.
inline float rk_exp(float x) {
  const float w = x < -104.0f ? -104.0f : x, z = w * 1.442695041f + 12582912.0f, n = z - 12582912.0f;
  const bool low = x < -87.3f;
  const float y = rk_shifted(z, rk_small_exp((w - n * 0.693359375f) + n * 2.12194440e-4f), low);
  return x < 88.722839f ? y : x + INFINITY;
}
inline double rk_exp(double x) { return std::exp(x); }
""",
        ("rk_shifted", "rk_small_exp"),
    ),
    "rk_exp2": (
        """// 2^x, as rk_exp has it.
inline float rk_exp2(float x) {
  const float w = x < -151.0f ? -151.0f : x, z = w + 12582912.0f;
  const float y = rk_shifted(z, rk_small_exp2(w - (z - 12582912.0f)), x < -125.0f);
  return x < 128.0f ? y : x + INFINITY;
}
inline double rk_exp2(double x) { return std::exp2(x); }
""",
        ("rk_shifted", "rk_small_exp2"),
    ),
    "rk_shifted": (
        CPP["rk_shifted"][0]
        + """inline float rk_shifted(float z, float p, bool low) {
  const uint32_t bits = (uint32_t(rk_int(z)) << 23) + uint32_t(rk_int(p)) + (low ? 32u << 23 : 0u);
  return rk_bits(int32_t(bits)) * (low ? 2.3283064365386963e-10f : 1.0f);
}
""",
        ("rk_bits",),
    ),
}
"""The same for graphs that tell small numbers from zero; an exponential takes longer."""


def used(table: dict[str, tuple[str, tuple[str, ...]]], calls: Collection[str]) -> str:
    """Return the text of the functions that are called, and of those that they call."""
    wanted: list[str] = []

    def want(name: str) -> None:
        if name not in wanted:
            for other in table[name][1]:
                want(other)
            wanted.append(name)

    for name in table:
        if name in calls:
            want(name)
    return "".join(table[name][0] for name in wanted)
