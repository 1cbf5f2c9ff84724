#include <cuda_bf16.h>
#include "rag_kernel.h"
#include "rag_tma.h"
#include "rag_mma.h"

// y[M, N] = x[M, K] w[N, K]^T: one warpgroup has 64 x 128 sums; two stages of 64 terms come by TMA.
constexpr int BM = 64, BN = 128, BK = 64, STAGE = (BM + BN) * BK * 2, SHARED = 2 * STAGE + 1024;

__global__ void __launch_bounds__(128) product(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                                               float* y, int M, int N, int K) {
  extern __shared__ char raw[];
  __shared__ alignas(8) uint64_t barrier[2];
  const uint32_t base = (rk::tma_address(raw) + 1023) / 1024 * 1024;
  const int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN, steps = K / BK;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) rk::mbarrier_init(rk::tma_address(&barrier[s]), 1);
    rk::mbarrier_publish();
  }
  __syncthreads();
  auto load = [&](int step) {
    const uint32_t to = base + step % 2 * STAGE, bar = rk::tma_address(&barrier[step % 2]);
    rk::mbarrier_expect(bar, STAGE);
    rk::tma_load(&x, to, bar, step * BK, row0);
    rk::tma_load(&w, to + BM * BK * 2, bar, step * BK, column0);
  };
  if (threadIdx.x == 0) load(0);
  float sums[BN / 2] = {};
  for (int step = 0; step < steps; ++step) {
    if (threadIdx.x == 0 && step + 1 < steps) load(step + 1);
    rk::mbarrier_wait(rk::tma_address(&barrier[step % 2]), step / 2 & 1);
    const uint32_t left = base + step % 2 * STAGE, right = left + BM * BK * 2;
    rk::wgmma_fence();
    for (int k = 0; k < BK / 16; ++k)
      rk::wgmma_bf16(sums, rk::wgmma_descriptor(left + 32 * k, 1, 1024), rk::wgmma_descriptor(right + 32 * k, 1, 1024));
    rk::wgmma_commit();
    rk::wgmma_wait<0>();
    __syncthreads();
  }
  const int lane = threadIdx.x % 32, row = row0 + threadIdx.x / 32 * 16 + lane / 4;
  for (int j = 0; j < BN / 8; ++j) {
    const int column = column0 + 8 * j + lane % 4 * 2;
    for (int h = 0; h < 2; ++h)
      for (int c = 0; c < 2; ++c)
        if (row + 8 * h < M && column + c < N) y[int64_t(row + 8 * h) * N + column + c] = sums[4 * j + 2 * h + c];
  }
}

void run(rk::Tensor<const __nv_bfloat16> x, rk::Tensor<const __nv_bfloat16> w, rk::Tensor<float> y) {
  const int64_t M = x.size(0), K = x.size(1), N = w.size(0);
  RK_CHECK(K % BK == 0, "terms in multiples of 64");
  const auto mx = rk::tma_map<2>(x.data, {K, M}, {1, K}, {BK, BM}), mw = rk::tma_map<2>(w.data, {K, N}, {1, K}, {BK, BN});
  cudaFuncSetAttribute(product, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED);
  const dim3 grid(unsigned((N + BN - 1) / BN), unsigned((M + BM - 1) / BM));
  product<<<grid, 128, SHARED, static_cast<cudaStream_t>(rk::stream(y))>>>(mx, mw, y.data, int(M), int(N), int(K));
}
RK_EXPORT(forward, run)
