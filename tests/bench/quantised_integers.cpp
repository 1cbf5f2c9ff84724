// Every float x and y for which x / y lies near a half below 256, but for powers of two: whether a product with 1 / y,
// corrected once, rounds to the integer that x / y rounds to (`rk_ratio` of rag_kernels/offline/codegen/math_prelude.py).
//
//     g++ -O3 -march=native -fopenmp-simd -o quantised_integers tests/bench/quantised_integers.cpp && ./quantised_integers
//
// Halves are where integers change: elsewhere both round alike, since they are less than four last bits apart. All
// steps are exact under powers of two, so that y between one and two stands for all. A number N tries each N-th y alone.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>

static float of_bits(uint32_t i) { float f; memcpy(&f, &i, 4); return f; }
static uint32_t bits_of(float f) { uint32_t i; memcpy(&i, &f, 4); return i; }

int main(int argc, char** argv) {
  const uint32_t step = argc > 1 ? uint32_t(atoi(argv[1])) : 1;
  const int around = 4;  // last bits of x
  long long tried = 0, integers = 0, quotients = 0, uncorrected = 0;
  for (uint32_t m = 0; m < 1u << 23; m += step) {
    const float y = of_bits(0x3f800000u | m), r = 1.0f / y;
    for (int d = -around; d <= around; ++d) {
      int wrong = 0, unequal = 0, plain = 0;
      #pragma omp simd reduction(+ : wrong, unequal, plain)
      for (int k = 0; k < 256; ++k) {
        const float x = of_bits(bits_of((float(k) + 0.5f) * y) + uint32_t(d));
        const float q = x * r, c = __builtin_fmaf(__builtin_fmaf(-q, y, x), r, q), exact = x / y;
        wrong += __builtin_nearbyintf(c) != __builtin_nearbyintf(exact);
        unequal += c != exact;
        plain += __builtin_nearbyintf(q) != __builtin_nearbyintf(exact);
      }
      tried += 256, integers += wrong, quotients += unequal, uncorrected += plain;
    }
  }
  printf("%lld quotients: %lld integers differ, %lld quotients, and %lld integers without the correction\n", tried, integers,
         quotients, uncorrected);
  return integers != 0;
}
