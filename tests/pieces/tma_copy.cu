#include <cuda_bf16.h>
#include "rag_kernel.h"
#include "rag_tma.h"

// A tensor of two dimensions by TMA into shared memory and back, in boxes that hang over its edges.
constexpr int ROWS = 32, COLUMNS = 64, BYTES = ROWS * COLUMNS * 2;

__global__ void copy(const __grid_constant__ CUtensorMap from, const __grid_constant__ CUtensorMap to) {
  __shared__ alignas(1024) char box[BYTES];
  __shared__ alignas(8) uint64_t barrier;
  const uint32_t at = rk::tma_address(box), bar = rk::tma_address(&barrier);
  const int c = blockIdx.x * COLUMNS, r = blockIdx.y * ROWS;
  if (threadIdx.x == 0) {
    rk::mbarrier_init(bar, 1);
    rk::mbarrier_publish();
    rk::mbarrier_expect(bar, BYTES);
    rk::tma_load(&from, at, bar, c, r);
  }
  __syncthreads();
  rk::mbarrier_wait(bar, 0);
  if (threadIdx.x == 0) {
    rk::tma_store(&to, at, c, r);
    rk::store_commit();
    rk::store_wait<0>();
  }
}

void run(rk::Tensor<const __nv_bfloat16> x, rk::Tensor<__nv_bfloat16> out) {
  const int64_t rows = x.size(0), columns = x.size(1);
  const auto from = rk::tma_map<2>(x.data, {columns, rows}, {1, columns}, {COLUMNS, ROWS});
  const auto to = rk::tma_map<2>(out.data, {columns, rows}, {1, columns}, {COLUMNS, ROWS});
  const dim3 grid(unsigned((columns + COLUMNS - 1) / COLUMNS), unsigned((rows + ROWS - 1) / ROWS));
  copy<<<grid, 32, 0, static_cast<cudaStream_t>(rk::stream(out))>>>(from, to);
}
RK_EXPORT(forward, run)
