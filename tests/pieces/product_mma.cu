#include "rag_kernel.h"
#include "rag_mma.h"

// y[M, N] = x[M, K] w[K, N] in bf16 with float32 sums: a warp has 16 x 16 of them; tiles come by cp.async, fragments by
// ldmatrix. A split source: NVRTC compiles it too.
#if RK_DEVICE
extern "C" __global__ void product(const uint16_t* x, const uint16_t* w, float* y, int N, int K) {
  __shared__ alignas(16) uint16_t left[2][16][24], right[2][16][24];  // 48 bytes a row: no bank is met twice
  const int lane = threadIdx.x, row0 = blockIdx.y * 16, column0 = blockIdx.x * 16, r = lane / 2, c = lane % 2 * 8;
  auto load = [&](int k0, int stage) {
    rk::cp_async_16(rk::shared_address(&left[stage][r][c]), x + int64_t(row0 + r) * K + k0 + c);
    rk::cp_async_16(rk::shared_address(&right[stage][r][c]), w + int64_t(k0 + r) * N + column0 + c);
    rk::cp_async_commit();
  };
  load(0, 0);
  float sums[2][4] = {};
  for (int k0 = 0; k0 < K; k0 += 16) {
    const int stage = k0 / 16 % 2;
    if (k0 + 16 < K) load(k0 + 16, 1 - stage), rk::cp_async_wait<1>();
    else rk::cp_async_wait<0>();
    __syncwarp();
    uint32_t a[4], b[4];
    rk::ldmatrix_x4(a, rk::shared_address(&left[stage][lane % 16][lane / 16 * 8]));
    rk::ldmatrix_x4_trans(b, rk::shared_address(&right[stage][lane % 16][lane / 16 * 8]));
    rk::mma_bf16(sums[0], a, {b[0], b[1]});
    rk::mma_bf16(sums[1], a, {b[2], b[3]});
    __syncwarp();
  }
  for (int n = 0; n < 2; ++n)
    for (int i = 0; i < 4; ++i)
      y[int64_t(row0 + lane / 4 + i / 2 * 8) * N + column0 + 8 * n + lane % 4 * 2 + i % 2] = sums[n][i];
}
#endif
#if RK_HOST
void run(rk::Tensor<const rk::bf16> x, rk::Tensor<const rk::bf16> w, rk::Tensor<float> y) {
  const int M = int(x.size(0)), K = int(x.size(1)), N = int(w.size(1));
  RK_CHECK(M % 16 == 0 && N % 16 == 0 && K % 16 == 0, "whole tiles only");
  const auto a = reinterpret_cast<const uint16_t*>(x.data), b = reinterpret_cast<const uint16_t*>(w.data);
  RK_LAUNCH(product, dim3(unsigned(N / 16), unsigned(M / 16)), dim3(32), 0, y, a, b, y.data, N, K);
}
RK_EXPORT(forward, run)
#endif
