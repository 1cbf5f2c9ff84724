#include <cuda_fp16.h>
#include "rag_kernel.h"
#include "rag_tma.h"
#include "rag_mma.h"

// y[64 m, N] = x[M, K] w[K, N]: the lanes of the right factor lie side by side; the left one comes from registers.
constexpr int BM = 64, BN = 64, BK = 64, SHARED = BK * BN * 2 + 1024;

__global__ void __launch_bounds__(128) product(const __half* x, const __grid_constant__ CUtensorMap w, float* y, int N, int K) {
  extern __shared__ char raw[];
  __shared__ alignas(8) uint64_t barrier;
  const uint32_t base = (rk::tma_address(raw) + 1023) / 1024 * 1024, bar = rk::tma_address(&barrier);
  const int column0 = blockIdx.x * BN, lane = threadIdx.x % 32, t = lane % 4;
  const int64_t row = blockIdx.y * BM + threadIdx.x / 32 * 16 + lane / 4;
  if (threadIdx.x == 0) rk::mbarrier_init(bar, 1), rk::mbarrier_publish();
  __syncthreads();
  float sums[BN / 2];
  for (int step = 0; step < K / BK; ++step) {
    if (threadIdx.x == 0) rk::mbarrier_expect(bar, BK * BN * 2), rk::tma_load(&w, base, bar, column0, step * BK);
    rk::mbarrier_wait(bar, step & 1);
    uint32_t left[BK / 16][4];
    for (int k = 0; k < BK / 16; ++k)
      for (int r = 0; r < 4; ++r)
        left[k][r] = *reinterpret_cast<const uint32_t*>(x + (row + r % 2 * 8) * K + step * BK + 16 * k + r / 2 * 8 + 2 * t);
    rk::wgmma_fence();
#pragma unroll
    for (int k = 0; k < BK / 16; ++k)  // sixteen terms are two groups of eight, 1024 bytes each
      rk::wgmma_f16<1>(sums, left[k], rk::wgmma_descriptor(base + 2048 * k, 8192, 1024), step + k > 0);
    rk::wgmma_commit();
    rk::wgmma_wait<0>();
    __syncthreads();
  }
  for (int j = 0; j < BN / 8; ++j)
    for (int h = 0; h < 2; ++h)
      for (int c = 0; c < 2; ++c) y[(row + 8 * h) * N + column0 + 8 * j + 2 * t + c] = sums[4 * j + 2 * h + c];
}

void run(rk::Tensor<const __half> x, rk::Tensor<const __half> w, rk::Tensor<float> y) {
  const int64_t M = x.size(0), K = x.size(1), N = w.size(1);
  RK_CHECK(M % BM == 0 && N % BN == 0 && K % BK == 0, "whole tiles only");
  const auto map = rk::tma_map<2>(w.data, {N, K}, {1, N}, {BN, BK});
  product<<<dim3(unsigned(N / BN), unsigned(M / BM)), 128, SHARED, static_cast<cudaStream_t>(rk::stream(y))>>>(
      x.data, map, y.data, int(N), int(K));
}
RK_EXPORT(forward, run)
