// What generated CUDA takes of cuda_fp8.h, for g++: conversions as the hardware has them, which know no infinity and drop
// the sign of a NaN.
#pragma once
using __nv_fp8_e4m3 = rk::e4m3;
using __nv_fp8_e5m2 = rk::e5m2;
template <class T> struct TwoOfEight {
  T x, y;
  explicit operator float2() const { return {float(x), float(y)}; }
};
using __nv_fp8x2_e4m3 = TwoOfEight<rk::e4m3>;
using __nv_fp8x2_e5m2 = TwoOfEight<rk::e5m2>;
enum { __NV_E4M3, __NV_E5M2, __NV_SATFINITE };
inline unsigned __nv_cvt_float2_to_fp8x2(float2 v, int, int kind) {
  const auto one = [&](float x) -> unsigned {
    if (x != x) return 0x7f;
    return kind == __NV_E4M3 ? rk::to_e4m3(x).bits : rk::to_e5m2(std::min(std::max(x, -57344.0f), 57344.0f)).bits;
  };
  return one(v.x) | one(v.y) << 8;
}
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned places) {
  const uint64_t both = uint64_t(b) << 32 | a;
  unsigned made = 0;
  for (int i = 0; i < 4; ++i) made |= unsigned(both >> (places >> 4 * i & 7) * 8 & 0xff) << 8 * i;
  return made;
}
