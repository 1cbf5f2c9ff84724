"""C++ texts of functions that C's library has for one number at a time, as vectors take them.

Comes in: nothing. Goes out: a text for each name, and which others it calls (`math_prelude.CPP`). They are of float,
within four units in the last place (`tests/bench/function_texts.py` measures it), with special values as PyTorch has
them; double stays with C's library.
"""

TEXTS: dict[str, tuple[str, tuple[str, ...]]] = {
    "rk_log2": (
        """// log2(x) = n + log(m) / log(2), m near 1: exact for powers of two. Denormals are scaled up first.
inline float rk_log2(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const uint32_t bits = rk_int(tiny ? x * 8388608.0f : x), shifted = bits - 0x3f3504f3u;
  const float n = float(int32_t(shifted) >> 23), m = rk_bits(int32_t(bits - (shifted & 0xff800000u)));
  float y = rk_log_normal(m) * 1.44269504f + (tiny ? n - 23.0f : n);
  y = x == 0.0f ? -INFINITY : y;
  y = x < 0.0f ? NAN : y;
  return x < INFINITY ? y : x;
}
inline double rk_log2(double x) { return std::log2(x); }
""",
        ("rk_bits", "rk_log_normal"),
    ),
    "rk_log10": (
        """// log10(x), as rk_log2 has it; the first bits of log10(2) make exact products with n.
inline float rk_log10(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const uint32_t bits = rk_int(tiny ? x * 8388608.0f : x), shifted = bits - 0x3f3504f3u;
  float n = float(int32_t(shifted) >> 23);
  const float m = rk_bits(int32_t(bits - (shifted & 0xff800000u)));
  n = tiny ? n - 23.0f : n;
  float y = (rk_log_normal(m) * 0.434294482f + n * -1.91003209e-5f) + n * 0.301049083f;
  y = x == 0.0f ? -INFINITY : y;
  y = x < 0.0f ? NAN : y;
  return x < INFINITY ? y : x;
}
inline double rk_log10(double x) { return std::log10(x); }
""",
        ("rk_bits", "rk_log_normal"),
    ),
    "rk_tan": (
        """inline float rk_tan(float x) { return x == 0.0f ? x : rk_wave(x, 0) / rk_wave(x, 1); }
inline double rk_tan(double x) { return std::tan(x); }
""",
        ("rk_wave",),
    ),
    "rk_arc": (
        """// asin(t), s = t * t up to 1/4.
inline float rk_arc(float t, float s) {
  float p = 4.22185473e-2f;
  p = p * s + 2.41476111e-2f;
  p = p * s + 4.54770960e-2f;
  p = p * s + 7.49524161e-2f;
  p = p * s + 1.66667536e-1f;
  return p * s * t + t;
}
""",
        (),
    ),
    "rk_asin": (
        """// asin(x): above 1/2 by the half of the angle that is left to a quarter of a turn.
inline float rk_asin(float x) {
  const float a = rk_abs(x), s = a > 0.5f ? 0.5f - 0.5f * a : x * x;
  const float y = rk_arc(a > 0.5f ? rk_sqrt(s) : a, s);
  return __builtin_copysignf(a > 0.5f ? 1.57079637f - (2.0f * y + 4.37113883e-8f) : y, x);
}
inline double rk_asin(double x) { return std::asin(x); }
""",
        ("rk_abs", "rk_arc", "rk_sqrt"),
    ),
    "rk_acos": (
        """inline float rk_acos(float x) {
  const float a = rk_abs(x), s = a > 0.5f ? 0.5f - 0.5f * a : x * x;
  const float y = rk_arc(a > 0.5f ? rk_sqrt(s) : x, s);
  const float far = x < 0.0f ? 3.14159274f - (2.0f * y + 8.74227766e-8f) : 2.0f * y;
  return a > 0.5f ? far : 1.57079637f - (y + 4.37113883e-8f);
}
inline double rk_acos(double x) { return std::acos(x); }
""",
        ("rk_abs", "rk_arc", "rk_sqrt"),
    ),
    "rk_arc_tan": (
        """// atan(t), |t| <= tan(pi/8).
inline float rk_arc_tan(float t) {
  const float s = t * t;
  float p = 8.06018710e-2f;
  p = p * s - 1.38798177e-1f;
  p = p * s + 1.99779227e-1f;
  p = p * s - 3.33329558e-1f;
  return p * s * t + t;
}
""",
        (),
    ),
    "rk_atan": (
        """// atan(x), beyond tan(pi/8) and its reciprocal by what is left to pi/4 and pi/2.
inline float rk_atan(float x) {
  const float a = rk_abs(x);
  const bool far = a > 2.41421356f, close = a < 0.414213562f;
  const float t = (far ? -1.0f : close ? a : a - 1.0f) / (far ? a : close ? 1.0f : a + 1.0f);
  const float start = far ? 1.57079637f : close ? 0.0f : 0.785398185f;
  return __builtin_copysignf(start + (rk_arc_tan(t) + start * -2.78275342e-8f), x);
}
inline double rk_atan(double x) { return std::atan(x); }
""",
        ("rk_abs", "rk_arc_tan"),
    ),
    "rk_atan2": (
        """// The angle of (x, y): the quotient in double, where nothing overflows.
inline float rk_atan2(float y, float x) {
  const double a = rk_abs(y), b = rk_abs(x), low = a < b ? a : b, high = a < b ? b : a;
  const bool middle = low > 0.41421356237309503 * high || low == INFINITY;
  const double q = (middle ? low - high : low) / (middle ? low + high : high);
  float r = rk_arc_tan(high == 0.0 || low == INFINITY ? 0.0f : float(q));
  r = middle ? 0.785398185f + (r - 2.18556941e-8f) : r;
  r = a > b ? 1.57079637f - (r + 4.37113883e-8f) : r;
  r = rk_int(x) < 0 ? 3.14159274f - (r + 8.74227766e-8f) : r;
  return __builtin_copysignf(x != x || y != y ? x + y : r, y);
}
inline double rk_atan2(double y, double x) { return std::atan2(y, x); }
""",
        ("rk_abs", "rk_arc_tan", "rk_bits"),
    ),
    "rk_half_exp": (
        """// exp(a) / 2 for a >= 0: it overflows where the half does.
inline float rk_half_exp(float a) {
  const float c = a > 90.0f ? 90.0f : a;
  const float z = c * 1.442695041f + 12582912.0f, n = z - 12582912.0f;
  return rk_power(z - 1.0f, (c - n * 0.693359375f) + n * 2.12194440e-4f);
}
""",
        ("rk_power",),
    ),
    "rk_cosh": (
        """inline float rk_cosh(float x) {
  const float e = rk_half_exp(rk_abs(x));
  return e + 0.25f / e;
}
inline double rk_cosh(double x) { return std::cosh(x); }
""",
        ("rk_abs", "rk_half_exp"),
    ),
    "rk_sinh": (
        """// sinh: an odd polynomial below 1.
inline float rk_sinh(float x) {
  const float a = rk_abs(x), s = x * x, e = rk_half_exp(a);
  float p = 2.03774063e-4f;
  p = p * s + 8.33021104e-3f;
  p = p * s + 1.66667178e-1f;
  return __builtin_copysignf(a < 1.0f ? p * s * a + a : e - 0.25f / e, x);
}
inline double rk_sinh(double x) { return std::sinh(x); }
""",
        ("rk_abs", "rk_half_exp"),
    ),
    "rk_asinh": (
        """// asinh: an odd polynomial below 1/2; what overflows when squared is doubled.
inline float rk_asinh(float x) {
  const float a = rk_abs(x), s = x * x;
  float p = -1.32480804e-2f;
  p = p * s + 2.81755477e-2f;
  p = p * s - 4.43858653e-2f;
  p = p * s + 7.49866292e-2f;
  p = p * s - 1.66666433e-1f;
  const bool far = a > 1e9f;
  const float y = rk_log(far ? a : a + rk_sqrt(s + 1.0f)) + (far ? 0.693147181f : 0.0f);
  return __builtin_copysignf(a < 0.5f ? p * s * a + a : y, x);
}
inline double rk_asinh(double x) { return std::asinh(x); }
""",
        ("rk_abs", "rk_log", "rk_sqrt"),
    ),
    "rk_acosh": (
        """inline float rk_acosh(float x) {
  const float t = x - 1.0f;
  const bool far = x > 1e9f;
  const float y = rk_log1p(far ? x : t + rk_sqrt(t * (t + 2.0f))) + (far ? 0.693147181f : 0.0f);
  return x < 1.0f ? NAN : y;
}
inline double rk_acosh(double x) { return std::acosh(x); }
""",
        ("rk_log1p", "rk_sqrt"),
    ),
    "rk_atanh": (
        """// atanh: an odd polynomial below 1/2.
inline float rk_atanh(float x) {
  const float a = rk_abs(x), s = x * x;
  float p = 1.82242513e-1f;
  p = p * s + 8.21305588e-2f;
  p = p * s + 1.46755889e-1f;
  p = p * s + 1.99776813e-1f;
  p = p * s + 3.33337426e-1f;
  return __builtin_copysignf(a < 0.5f ? p * s * a + a : 0.5f * rk_log1p(2.0f * a / (1.0f - a)), x);
}
inline double rk_atanh(double x) { return std::atanh(x); }
""",
        ("rk_abs", "rk_log1p"),
    ),
    "rk_erfc": (
        """// erfc: 1 - x times a polynomial near zero, exp(-a^2) f(a) elsewhere: the square in two parts, times 2^24
// for what is no normal number.
inline float rk_erfc(float x) {
  const float a = rk_abs(x), c = a < 10.1f ? a : 10.1f, q = (c - 2.0f) / (c + 2.0f);
  float p = 2.59649798e-5f;
  p = p * q - 3.65711370e-4f;
  p = p * q - 1.25352468e-3f;
  p = p * q + 1.27428921e-3f;
  p = p * q + 8.63880012e-3f;
  p = p * q - 8.04484636e-3f;
  p = p * q - 5.42052537e-2f;
  p = p * q + 1.64053187e-1f;
  p = p * q - 1.66031346e-1f;
  p = p * q - 9.27639008e-2f;
  p = p * q + 2.76978374e-1f;
  const float f = (p + 1.0f) / (1.0f + 2.0f * c);
  const float h = rk_bits(rk_int(c) & 0xfffff000), t = -h * h;
  const float z = t * 1.442695041f + 12582912.0f, n = z - 12582912.0f;
  const float e = rk_power(z + 24.0f, (t - n * 0.693359375f) + (n * 2.12194440e-4f + (h - c) * (h + c)));
  const float y = a > 10.06f ? 0.0f : f * e * 5.96046448e-8f, s = x * x;
  float b = 4.67183069e-3f;
  b = b * s - 2.67311279e-2f;
  b = b * s + 1.12823322e-1f;
  b = b * s - 3.76125753e-1f;
  b = b * s + 1.12837911f;
  return x != x ? x : a < 0.5f ? 1.0f - b * x : x < 0.0f ? 2.0f - y : y;
}
inline double rk_erfc(double x) { return std::erfc(x); }
""",
        ("rk_abs", "rk_bits", "rk_power"),
    ),
    "rk_wide_bits": (
        """inline double rk_wide(uint64_t i) { double f; __builtin_memcpy(&f, &i, 8); return f; }
inline uint64_t rk_wide_bits(double f) { uint64_t i; __builtin_memcpy(&i, &f, 8); return i; }
""",
        (),
    ),
    "rk_log2_wide": (
        """// log2(x) of a normal x > 0 in double, to 4e-12 of what it is: log2(m) + n, m near 1.
inline double rk_log2_wide(double x) {
  const uint64_t bits = rk_wide_bits(x), shifted = bits - 0x3fe6a09e667f3bcdu + 0x3ff0000000000000u;
  const double n = rk_wide((shifted >> 52) | 0x4330000000000000u) - 4503599627371519.0;
  const double m = rk_wide(bits - (shifted & 0xfff0000000000000u) + 0x3ff0000000000000u);
  const double t = (m - 1.0) / (m + 1.0), s = t * t;
  double p = 0.34072851951748884;
  p = p * s + 0.4116728005570081;
  p = p * s + 0.5770835836849304;
  p = p * s + 0.9617966733480072;
  p = p * s + 2.885390081790082;
  return p * t + n;
}
""",
        ("rk_wide_bits",),
    ),
    "rk_pow": (
        """// |x|^y = 2^(y log2|x|), the product in double; then the sign, and what is no number.
inline float rk_pow(float x, float y) {
  const float a = rk_abs(x);
  double l = rk_log2_wide(a);
  l = a == 0.0f ? -INFINITY : a == INFINITY ? INFINITY : l;
  double w = a == 1.0f ? 0.0 : double(y) * l;
  w = w > 200.0 ? 200.0 : w < -200.0 ? -200.0 : w;
  const double n = (w + 6755399441055744.0) - 6755399441055744.0;
  const float r = float((w - n) * 0.6931471805599453);
  const int32_t k = int32_t(n), half = k >> 1;
  float p = 1.9875691500e-4f;
  p = p * r + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * (r * r) + r + 1.0f;
  p = p * rk_bits((half + 127) << 23) * rk_bits((k - half + 127) << 23);
  const float whole = __builtin_truncf(y), pairs = __builtin_truncf(y * 0.5f);
  p = rk_int(x) < 0 && whole == y && pairs * 2.0f != y ? -p : p;
  p = x < 0.0f && whole != y && a != INFINITY ? NAN : p;
  p = x != x || y != y ? x + y : p;
  return y == 0.0f || x == 1.0f ? 1.0f : p;
}
inline double rk_pow(double x, double y) { return std::pow(x, y); }
""",
        ("rk_abs", "rk_bits", "rk_log2_wide"),
    ),
    "rk_hypot": (
        """inline float rk_hypot(float x, float y) {
  const double a = x, b = y;
  const float r = float(__builtin_sqrt(a * a + b * b));
  return rk_abs(x) == INFINITY || rk_abs(y) == INFINITY ? INFINITY : r;
}
inline double rk_hypot(double x, double y) { return std::hypot(x, y); }
""",
        ("rk_abs",),
    ),
    "rk_erfinv": (
        """// The inverse of erf: x times a polynomial of -log(1 - x^2), or of its root where that is large.
inline float rk_erfinv(float x) {
  const float a = rk_abs(x), s = x * x;
  const bool small = a < 0.5f, close = a < 0.9966f;
  const float u = small ? 1.0f - s : (1.0f - a) * (1.0f + a);
  const float w = (small ? (s - (1.0f - u)) / u : 0.0f) - rk_log(u);
  const float v = close ? w - 2.5f : rk_sqrt(w) - 3.0f;
  float p = close ? 2.85347905e-8f : -1.59774339e-4f;
  p = p * v + (close ? 3.43727066e-7f : 8.25163443e-5f);
  p = p * v + (close ? -3.52885946e-6f : 1.29224022e-3f);
  p = p * v + (close ? -4.39678115e-6f : -3.65653937e-3f);
  p = p * v + (close ? 2.18602188e-4f : 5.76554472e-3f);
  p = p * v + (close ? -1.25370757e-3f : -7.62624433e-3f);
  p = p * v + (close ? -4.17770771e-3f : 9.43503715e-3f);
  p = p * v + (close ? 2.46640727e-1f : 1.00167418f);
  p = p * v + (close ? 1.50140941f : 2.83297706f);
  return a == 1.0f ? x * INFINITY : p * x;
}
inline double rk_erfinv(double x) {
  const double a = rk_abs(x);
  if (!(a < 1.0) || a == 0.0) return a == 1.0 ? x * INFINITY : a > 1.0 ? NAN : x;
  double y = rk_erfinv(float(a < 0.9999999 ? a : 0.9999999)), left = 1.0;
  for (int step = 0; step < 40 && (left > 1e-9 || left < -1e-9); ++step) {
    const double miss = a < 0.5 ? std::erf(y) - a : (1.0 - a) - std::erfc(y);
    const double newton = miss / (1.1283791670955126 * std::exp(-y * y));
    left = newton / (1.0 + newton * y);
    y -= left;
  }
  return std::copysign(y, x);
}
""",
        ("rk_abs", "rk_log", "rk_sqrt"),
    ),
    "rk_lgamma": (
        """// log|gamma(x)|: (x - 1)(x - 2) times a polynomial to 2.5, Stirling's series beyond, reflected below 0.
// In double; where it changes sign between poles below zero it is exact to some 1e-9 of one.
inline float rk_lgamma(float x) {
  const double a = rk_abs(x);
  const bool small = a < 0.75, far = a >= 2.5;
  const double log = rk_log2_wide(a) * 0.6931471805599453;
  const double z = (small ? a + 1.0 : a) - 1.625;
  double p = 2.81529881669514e-4;
  p = p * z - 4.5263317280604175e-4;
  p = p * z + 8.740626289154455e-5;
  p = p * z - 2.467062484400549e-4;
  p = p * z + 1.1306402263620227e-3;
  p = p * z - 1.9639911274984226e-3;
  p = p * z + 3.2797948714029454e-3;
  p = p * z - 6.178451319479755e-3;
  p = p * z + 1.199691932995662e-2;
  p = p * z - 2.4198113853880293e-2;
  p = p * z + 5.257917803989316e-2;
  p = p * z - 0.13157888786876323;
  p = p * z + 0.46580963936228015;
  p = p * (z + 0.625) * (z - 0.375) + (small ? -log : 0.0);
  const double v = 1.0 / a, u = v * v;
  double q = -6.331510605813602e-4;
  q = q * u + 6.777302755476216e-4;
  q = q * u - 5.837974697228492e-4;
  q = q * u + 7.932655771155129e-4;
  q = q * u - 2.777772902764951e-3;
  q = q * u + 8.333333332325767e-2;
  q = q * v + ((a - 0.5) * log - a + 0.9189385332046728);
  const double y = far ? q : p;
  const double f = a - ((a + 6755399441055744.0) - 6755399441055744.0), g = f * f;
  double s = -7.022163742109954e-3;
  s = s * g + 8.204647895077025e-2;
  s = s * g - 0.5992513301295678;
  s = s * g + 2.550163240319366;
  s = s * g - 5.167712762115833;
  s = s * g + 3.1415926535233463;
  const double turn = rk_log2_wide(a * rk_abs(s * f) * 0.3183098861837907) * 0.6931471805599453;
  float r = float(x < 0.0f ? -turn - y : y);
  r = x == 0.0f || a == INFINITY || (x < 0.0f && f == 0.0) ? INFINITY : r;
  return x != x ? x : r;
}
inline double rk_lgamma(double x) { return std::lgamma(x); }
""",
        ("rk_abs", "rk_log2_wide"),
    ),
}
