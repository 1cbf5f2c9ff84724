#include <cuda_runtime.h>
#include "rag_kernel.h"
#include "rag_mma.h"

// y[M, N] = x[M, K] w[N, K]^T in float32 by three TF32 products of split numbers; a warp has 16 x 8 sums.
__global__ void product(const float* x, const float* w, float* y, int N, int K) {
  const int lane = threadIdx.x, g = lane / 4, t = lane % 4, row0 = blockIdx.y * 16, column0 = blockIdx.x * 8;
  float sums[4] = {};
  for (int k0 = 0; k0 < K; k0 += 8) {
    uint32_t high[4], low[4], right_high[2], right_low[2];
    for (int r = 0; r < 4; ++r)
      rk::split_tf32(x[int64_t(row0 + g + r % 2 * 8) * K + k0 + t + r / 2 * 4], high[r], low[r]);
    for (int r = 0; r < 2; ++r) rk::split_tf32(w[int64_t(column0 + g) * K + k0 + t + r * 4], right_high[r], right_low[r]);
    float part[4] = {};  // tensor cores cut off what they add: long sums are ours
    rk::mma_tf32(part, low, right_high);
    rk::mma_tf32(part, high, right_low);
    rk::mma_tf32(part, high, right_high);
    for (int i = 0; i < 4; ++i) sums[i] += part[i];
  }
  for (int i = 0; i < 4; ++i) y[int64_t(row0 + g + i / 2 * 8) * N + column0 + 2 * t + i % 2] = sums[i];
}

void run(rk::Tensor<const float> x, rk::Tensor<const float> w, rk::Tensor<float> y) {
  const int M = int(x.size(0)), K = int(x.size(1)), N = int(w.size(0));
  RK_CHECK(M % 16 == 0 && N % 8 == 0 && K % 8 == 0, "whole tiles only");
  product<<<dim3(unsigned(N / 8), unsigned(M / 16)), 32, 0, static_cast<cudaStream_t>(rk::stream(y))>>>(
      x.data, w.data, y.data, N, K);
}
RK_EXPORT(forward, run)
