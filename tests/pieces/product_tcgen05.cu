#include <cuda_bf16.h>
#include "rag_kernel.h"
#include "rag_tma.h"
#include "rag_mma.h"

// y[M, N] = x[M, K] w[N, K]^T on Blackwell: a block has 128 x 128 sums in tensor memory; two stages of 64 terms by TMA.
constexpr int BM = 128, BN = 128, BK = 64, STAGE = (BM + BN) * BK * 2, SHARED = 2 * STAGE + 1024;

__global__ void __launch_bounds__(128) product(const __grid_constant__ CUtensorMap x, const __grid_constant__ CUtensorMap w,
                                               float* y, int M, int N, int K) {
  extern __shared__ char raw[];
  __shared__ alignas(8) uint64_t full[2], done[2], all;
  __shared__ uint32_t place;
  const uint32_t base = (rk::tma_address(raw) + 1023) / 1024 * 1024;
  const int row0 = blockIdx.y * BM, column0 = blockIdx.x * BN, steps = K / BK, warp = threadIdx.x / 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < 2; ++s) {
      rk::mbarrier_init(rk::tma_address(&full[s]), 1);
      rk::mbarrier_init(rk::tma_address(&done[s]), 1);
    }
    rk::mbarrier_init(rk::tma_address(&all), 1);
    rk::mbarrier_publish();
  }
  if (warp == 0) rk::tmem_take<BN>(rk::tma_address(&place));
  rk::tcgen05_before_sync();
  __syncthreads();
  rk::tcgen05_after_sync();
  const uint32_t sums = place;
  if (threadIdx.x == 0) {
    auto load = [&](int step) {
      const uint32_t to = base + step % 2 * STAGE, bar = rk::tma_address(&full[step % 2]);
      rk::mbarrier_expect(bar, STAGE);
      rk::tma_load(&x, to, bar, step * BK, row0);
      rk::tma_load(&w, to + BM * BK * 2, bar, step * BK, column0);
    };
    load(0);
    for (int step = 0; step < steps; ++step) {
      if (step + 1 < steps) {
        if (step > 0) rk::mbarrier_wait(rk::tma_address(&done[(step + 1) % 2]), (step - 1) / 2 & 1);
        load(step + 1);
      }
      rk::mbarrier_wait(rk::tma_address(&full[step % 2]), step / 2 & 1);
      const uint32_t left = base + step % 2 * STAGE, right = left + BM * BK * 2;
      for (int k = 0; k < BK / 16; ++k)
        rk::tcgen05_bf16<BN>(sums, rk::tcgen05_descriptor(left + 32 * k), rk::tcgen05_descriptor(right + 32 * k),
                             step + k);
      rk::tcgen05_commit(rk::tma_address(&done[step % 2]));
    }
    rk::tcgen05_commit(rk::tma_address(&all));
  }
  rk::mbarrier_wait(rk::tma_address(&all), 0);  // used once: a barrier of many phases may be asked for one alone
  rk::tcgen05_after_sync();
  const int row = row0 + threadIdx.x;
  for (int first = 0; first < BN; first += 32) {
    float some[32];
    rk::tmem_load_32(some, sums + first + (uint32_t(32 * warp) << 16));
    rk::tmem_wait(some);
    for (int c = 0; c < 32; ++c)
      if (row < M && column0 + first + c < N) y[int64_t(row) * N + column0 + first + c] = some[c];
  }
  rk::tcgen05_before_sync();
  __syncthreads();
  if (warp == 0) rk::tmem_give_back<BN>(sums);
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
