#include <cuda_runtime.h>
#include "rag_kernel.h"
#include "rag_tma.h"

// out[r] = sum of row r, by a cluster of four blocks that read each other's part; a barrier of block 0 counts the readers.
constexpr int CLUSTER = 4, T = 128;

__global__ void row_sums(const float* x, float* out, int columns) {
  __shared__ float part[T], total;
  __shared__ alignas(8) uint64_t read_by_all;
  const int rank = int(rk::cluster_rank()), row = blockIdx.x / CLUSTER;
  if (rank == 0 && threadIdx.x == 0) rk::mbarrier_init(rk::tma_address(&read_by_all), CLUSTER), rk::mbarrier_publish();
  float sum = 0;
  for (int c = rank * T + threadIdx.x; c < columns; c += CLUSTER * T) sum += x[int64_t(row) * columns + c];
  part[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    total = 0;
    for (int i = 0; i < T; ++i) total += part[i];
  }
  rk::cluster_sync();
  if (threadIdx.x == 0) {
    float all = 0;
    for (int b = 0; b < CLUSTER; ++b) all += *rk::cluster_pointer(&total, b);
    rk::mbarrier_arrive_at(rk::tma_address(&read_by_all), 0);
    if (rank == 0) {
      rk::mbarrier_wait(rk::tma_address(&read_by_all), 0);
      out[row] = all;
    }
  }
  rk::cluster_sync();
}

void run(rk::Tensor<const float> x, rk::Tensor<float> out) {
  const int rows = int(x.size(0));
  rk::launch_clusters(row_sums, dim3(unsigned(rows * CLUSTER)), dim3(T), CLUSTER, 0, out, x.data, out.data, int(x.size(1)));
}
RK_EXPORT(forward, run)
