#include <cuda_runtime.h>
#include "rag_kernel.h"
#include "rag_mma.h"

// y[M, N] = x[M, K] w[N, K]^T in int8 with int32 sums; a warp has 16 x 8 of them.
__global__ void product(const int8_t* x, const int8_t* w, int* y, int N, int K) {
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4, row0 = blockIdx.y * 16, column0 = blockIdx.x * 8;
  int sums[4] = {};
  for (int k0 = 0; k0 < K; k0 += 32) {
    uint32_t a[4], b[2];
    for (int r = 0; r < 4; ++r)
      a[r] = *reinterpret_cast<const uint32_t*>(x + int64_t(row0 + g + r % 2 * 8) * K + k0 + 4 * t + r / 2 * 16);
    for (int r = 0; r < 2; ++r)
      b[r] = *reinterpret_cast<const uint32_t*>(w + int64_t(column0 + g) * K + k0 + 4 * t + r * 16);
    rk::mma_s8(sums, a, b);
  }
  for (int i = 0; i < 4; ++i) y[int64_t(row0 + g + i / 2 * 8) * N + column0 + 2 * t + i % 2] = sums[i];
}

void run(rk::Tensor<const int8_t> x, rk::Tensor<const int8_t> w, rk::Tensor<int32_t> y) {
  const int M = int(x.size(0)), K = int(x.size(1)), N = int(w.size(0));
  RK_CHECK(M % 16 == 0 && N % 8 == 0 && K % 32 == 0, "whole tiles only");
  product<<<dim3(unsigned(N / 8), unsigned(M / 16)), 32, 0, static_cast<cudaStream_t>(rk::stream(y))>>>(
      x.data, w.data, y.data, N, K);
}
RK_EXPORT(forward, run)
