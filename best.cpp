// layer_norm: 1 fused loop nest
#pragma GCC optimize("no-trapping-math")  // comparisons vectorise; values stay exact
#ifdef __AVX512F__
#pragma GCC target("prefer-vector-width=512")
#endif
#include <cmath>
#include <cstdint>
#include <memory>
#include <algorithm>
#include "rag_kernel.h"

inline float rk_bits(int32_t i) { float f; __builtin_memcpy(&f, &i, 4); return f; }
inline int32_t rk_int(float f) { int32_t i; __builtin_memcpy(&i, &f, 4); return i; }
// sqrt(x) = x * rsqrt(x) by Newton steps from a guess in integer arithmetic, within 0.7 ulp: libm's
// would set errno, and so would not vectorise.
inline float rk_sqrt(float x) {
  const bool tiny = x < 1.17549435e-38f;
  const float w = tiny ? x * 16777216.0f : x;
  float y = rk_bits(0x5f375a86 - (rk_int(w) >> 1));
  y = y * (1.5f - 0.5f * w * y * y);
  y = y * (1.5f - 0.5f * w * y * y);
  float s = w * y;
  s = s + 0.5f * y * (w - s * s);
  s = tiny ? s * 2.44140625e-4f : s;
  s = x == INFINITY ? x : s;
  return x < 0.0f ? NAN : s;
}
inline double rk_sqrt(double x) { return std::sqrt(x); }
constexpr int64_t BLOCK = 512, TILE = 4096, LANES = 1024, KEEP = 1, ROWS = 256, COLUMNS = 256, DEPTH = 256, PRODUCTS = 1, ATTENTION = 1;  // tuning parameters

void forward_kernel(rk::Tensor<const float> input, rk::Tensor<const float> weight, rk::Tensor<const float> bias, rk::Tensor<float> layer_norm) {
  const int64_t n0 = 64;
  const int64_t n1 = layer_norm.size(0);
  RK_CHECK(layer_norm.size(1) == n0, "this kernel needs layer_norm.size(1) == n0");
  RK_CHECK(input.size(0) == n1, "this kernel needs input.size(0) == n1");
  RK_CHECK(input.size(1) == n0, "this kernel needs input.size(1) == n0");
  RK_CHECK(weight.size(0) == n0, "this kernel needs weight.size(0) == n0");
  RK_CHECK(bias.size(0) == n0, "this kernel needs bias.size(0) == n0");

  // layer_norm: n1 rows of n0
  #pragma omp parallel for schedule(static)
  for (int64_t t = 0; t < n1; ++t) {
    const int64_t i0 = t;
    double acc1_all = 0;
    for (int64_t lo = 0; lo < n0; lo += BLOCK) {
      const int64_t hi = lo + BLOCK < n0 ? lo + BLOCK : n0;
      float acc1_part = 0;
      #pragma omp simd reduction(+ : acc1_part)
      for (int64_t r0 = lo; r0 < hi; ++r0) {
        const float v2 = input.data[i0 * n0 + r0];
        acc1_part += v2;
      }
      acc1_all += acc1_part;
    }
    const float v3 = float(acc1_all) / float(n0);
    double acc4_all = 0;
    for (int64_t lo = 0; lo < n0; lo += BLOCK) {
      const int64_t hi = lo + BLOCK < n0 ? lo + BLOCK : n0;
      float acc4_part = 0;
      #pragma omp simd reduction(+ : acc4_part)
      for (int64_t r0 = lo; r0 < hi; ++r0) {
        const float v5 = input.data[i0 * n0 + r0];
        const float v6 = v5 - v3;
        const float v7 = v6 * v6;
        acc4_part += v7;
      }
      acc4_all += acc4_part;
    }
    const float v8 = rk_sqrt(float(acc4_all) / float(n0) + 1e-05f);
    const float v9 = 1.0f / v8;
    #pragma omp simd
    for (int64_t r0 = 0; r0 < n0; ++r0) {
      const float v10 = input.data[i0 * n0 + r0];
      const float v11 = v10 - v3;
      const float v12 = weight.data[r0];
      const float v13 = bias.data[r0];
      const float v14 = v11 * v9 * v12 + v13;
      layer_norm.data[i0 * n0 + r0] = v14;
    }
  }
}
RK_EXPORT(forward, forward_kernel)
