// Enough of CUDA for g++ to run generated kernels without a GPU: a thread for each thread of a block, blocks one after
// the other, shared memory as static variables. Slow, and for right numbers only. All lanes of a warp take part in a shuffle.
#pragma once
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <thread>
#include <vector>

#define __global__
#define __device__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct int2 { int x, y; };
inline int2 make_int2(int x, int y) { return {x, y}; }
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct dim3 { unsigned x, y, z; dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {} };
inline thread_local dim3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;
inline std::barrier<>* block_barrier = nullptr;
inline std::deque<std::barrier<>> warp_barriers;
inline unsigned in_block() { return threadIdx.x + (threadIdx.y + threadIdx.z * blockDim.y) * blockDim.x; }
inline void wait_for_warp() { warp_barriers[in_block() / 32].arrive_and_wait(); }
inline void __syncthreads() { block_barrier->arrive_and_wait(); }
inline void __threadfence() {}
inline int atomicAdd(int* p, int v) { return __atomic_fetch_add(p, v, __ATOMIC_SEQ_CST); }
inline int __syncthreads_or(int v) {
  static int any;
  if (in_block() == 0) any = 0;
  __syncthreads();
  if (v) atomicAdd(&any, 1);
  __syncthreads();
  v = any;
  __syncthreads();
  return v;
}
inline float __ldcg(const float* p) { return *p; }
inline __align__(1024) float shared[64 * 1024];  // dynamic shared memory
template <class T> T shuffle(T v, unsigned lane) {
  static T shown[1024];
  const unsigned me = in_block();
  shown[me] = v;
  wait_for_warp();
  v = shown[me / 32 * 32 + lane];
  wait_for_warp();
  return v;
}
template <class T> T __shfl_xor_sync(unsigned, T v, int d) { return shuffle(v, (in_block() % 32) ^ d); }
template <class T> T __shfl_sync(unsigned, T v, int lane) { return shuffle(v, lane); }
template <class T> T __shfl_up_sync(unsigned, T v, unsigned d) {
  const unsigned lane = in_block() % 32;
  return shuffle(v, lane >= d ? lane - d : lane);
}

inline unsigned __float_as_uint(float x) { unsigned u; __builtin_memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(unsigned u) { float x; __builtin_memcpy(&x, &u, 4); return x; }

// mma.sync m16n8k8 on TF32, with the layout of fragments that PTX documents: every thread shows its part, waits, and
// sums what its results need. Tensor cores cut the 13 lowest bits of each factor off.
inline void emulate_multiply(float* sums, const unsigned (&a)[4], const unsigned (&b)[2]) {
  static float all_a[1024][4], all_b[1024][2];
  const unsigned me = threadIdx.x, warp = me / 32 * 32, g = me % 32 / 4, q = me % 4;
  for (int i = 0; i < 4; ++i) all_a[me][i] = __uint_as_float(a[i] & 0xffffe000u);
  for (int i = 0; i < 2; ++i) all_b[me][i] = __uint_as_float(b[i] & 0xffffe000u);
  wait_for_warp();
  for (int i = 0; i < 4; ++i)
    for (unsigned k = 0; k < 8; ++k) {  // a0: row g, a1: row g + 8; a2 and a3 four terms further on
      const float left = all_a[warp + g * 4 + k % 4][i / 2 + k / 4 * 2];
      sums[i] += left * all_b[warp + (q * 2 + i % 2) * 4 + k % 4][k / 4];
    }
  wait_for_warp();
}

typedef void* cudaStream_t;
typedef int cudaMemPool_t;
enum {
  cudaSuccess, cudaMemPoolAttrReleaseThreshold, cudaDevAttrMultiProcessorCount,
  cudaFuncAttributeMaxDynamicSharedMemorySize
};
inline int cudaGetDevice(int*) { return cudaSuccess; }
inline int cudaDeviceGetDefaultMemPool(int*, int) { return cudaSuccess; }
inline int cudaMemPoolSetAttribute(int, int, void*) { return cudaSuccess; }
inline int cudaMallocAsync(void** p, size_t n, cudaStream_t) { return !(*p = std::aligned_alloc(256, (n + 255) / 256 * 256)); }
inline int cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t) { return std::memset(p, v, n), cudaSuccess; }
inline int cudaDeviceGetAttribute(int* v, int, int) { return *v = 8, cudaSuccess; }  // processors
template <class F> int cudaFuncSetAttribute(F, int, int) { return cudaSuccess; }
inline int cudaFreeAsync(void* p, cudaStream_t) { std::free(p); return cudaSuccess; }

template <class F> void emulate(dim3 grid, dim3 block, F kernel) {
  const unsigned threads = block.x * block.y * block.z;
  std::barrier<> barrier(threads);
  block_barrier = &barrier, blockDim = block, gridDim = grid;
  warp_barriers.clear();
  for (unsigned t = 0; t < threads; t += 32) warp_barriers.emplace_back(std::min(32u, threads - t));
  std::vector<std::thread> team;
  for (unsigned t = 0; t < threads; ++t)
    team.emplace_back([&, t] {
      threadIdx = dim3(t % block.x, t / block.x % block.y, t / block.x / block.y);
      for (unsigned b = 0; b < grid.x; ++b) {
        blockIdx = dim3(b, 0, 0);
        kernel();
        barrier.arrive_and_wait();
      }
    });
  for (auto& thread : team) thread.join();
}
