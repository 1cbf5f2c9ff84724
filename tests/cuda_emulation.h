// Enough of CUDA for g++ to run generated kernels without a GPU: a fiber for each thread of a block; blocks one after the
// other, or all at once where a launch asks for that (eight, or a cluster of sixteen); shared memory as static variables,
// one for each of sixteen blocks. For right numbers only. All lanes of a warp take part in a shuffle. What is the same for all kernels is
// compiled once (`cuda_emulation.cpp`, tensor cores in `hopper_emulation.cpp`).
#pragma once
#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#define __global__
#define __device__
#define __host__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)

struct int2 { int x, y; };
inline int2 make_int2(int x, int y) { return {x, y}; }
struct float1 { float x; };
struct float2 { float x, y; };
struct float4 { float x, y, z, w; };
struct __align__(16) uint4 { unsigned x, y, z, w; };
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float __expf(float x) { return std::exp(x); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __fmul_rn(float x, float y) {
  volatile float product = x * y;
  return product;
}
inline double erfinv(double x) {
  double low = -30, high = 30;
  for (int step = 0; step < 80; ++step) (std::erf((low + high) / 2) < x ? low : high) = (low + high) / 2;
  return (low + high) / 2;
}
inline float erfinvf(float x) { return float(erfinv(x)); }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
struct dim3 { unsigned x, y, z; constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_) {} };
extern dim3 threadIdx, blockIdx, blockDim, gridDim;
void let_others();  // of the block, or of several, run
struct Barrier {
  unsigned expected, here = 0, round = 0;
  void wait();
};
struct Barriers {  // of a block, of its warps and of its warpgroups
  Barrier all, *warps, *groups;
};
extern Barriers* barriers;
inline unsigned in_block() { return threadIdx.x + (threadIdx.y + threadIdx.z * blockDim.y) * blockDim.x; }
inline unsigned resident_block() { return blockIdx.x % 16; }  // of those that run at once; each has shared memory
inline void wait_for_warp() { barriers->warps[in_block() / 32].wait(); }
inline void __syncwarp() { wait_for_warp(); }
inline void __syncthreads() { barriers->all.wait(); }
inline void __threadfence() {}
inline void __nanosleep(unsigned) { let_others(); }
template <class T> T atomicAdd(T* p, T v) { const T old = *p; return *p += v, old; }
template <class T> T atomicMax(T* p, T v) { const T old = *p; return *p = v > old ? v : old, old; }
template <class T> T atomicMin(T* p, T v) { const T old = *p; return *p = v < old ? v : old, old; }
template <class T> T atomicCAS(T* p, T expected, T v) { const T old = *p; return *p = old == expected ? v : old, old; }
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
struct ulonglong2 { unsigned long long x, y; };
template <class T> T __ldcg(const T* p) { return *p; }
template <class T> void copy_ahead(T* to, const void* from) { std::memcpy(to, from, sizeof(T)); }
inline void copy_or_clear(float4* to, const void* from, bool there) { there ? copy_ahead(to, from) : (void)(*to = {}); }
inline float4 take_whole(const float4* from) { return *from; }
inline void put_whole(void* to, float4 v) { std::memcpy(to, &v, sizeof v); }
inline void close_copies() {}
inline void await_copies(int later) { if (later < 0) std::abort(); }  // for one that was not made
inline void post(ulonglong2* to, ulonglong2 v) { *to = v; }
inline ulonglong2 posted(const ulonglong2* at) { return let_others(), *at; }
inline __align__(1024) float shared_of[16][64 * 1024];  // dynamic shared memory
template <class T> T shuffle(T v, unsigned lane) {
  static T shown_of[16][1024];
  T* shown = shown_of[resident_block()];
  const unsigned me = in_block();
  shown[me] = v;
  wait_for_warp();
  v = shown[me / 32 * 32 + lane];
  wait_for_warp();
  return v;
}
template <class T> T __shfl_xor_sync(unsigned, T v, int d) { return shuffle(v, (in_block() % 32) ^ d); }
template <class T> T __shfl_sync(unsigned, T v, int lane) { return shuffle(v, lane); }
inline int __ffs(int v) { return __builtin_ffs(v); }
template <class T> T __shfl_up_sync(unsigned, T v, unsigned d) {
  const unsigned lane = in_block() % 32;
  return shuffle(v, lane >= d ? lane - d : lane);
}

inline unsigned __popc(unsigned v) { return unsigned(__builtin_popcount(v)); }
inline unsigned __ballot_sync(unsigned, int v) {
  static int shown_of[16][1024];
  int* const shown = shown_of[resident_block()] + in_block() / 32 * 32;
  shown[in_block() % 32] = v != 0;
  wait_for_warp();
  unsigned set = 0;
  for (unsigned lane = 0; lane < 32; ++lane) set |= unsigned(shown[lane]) << lane;
  wait_for_warp();
  return set;
}
inline unsigned __float_as_uint(float x) { unsigned u; __builtin_memcpy(&u, &x, 4); return u; }
inline float __uint_as_float(unsigned u) { float x; __builtin_memcpy(&x, &u, 4); return x; }

// mma.sync m16n8k8 on TF32. Tensor cores cut the 13 lowest bits of each factor off.
void emulate_multiply_tf32(float* sums, const unsigned (&a)[4], const unsigned (&b)[2]);

// What attention takes from `attention_text.INSTRUCTIONS`: lanes show their parts or addresses, wait, and compute.
namespace attend {
template <class T> uint32_t packed(T, float a, float b) {
  T t[2];
  t[0] = a, t[1] = b;
  uint32_t u;
  __builtin_memcpy(&u, t, 4);
  return u;
}
inline void multiply(float, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulate_multiply_tf32(c, a, {b0, b1});
}
inline void four_of(uint32_t (&r)[4], const void* row, bool turned) {
  static const uint16_t* rows[1024];
  const unsigned me = threadIdx.x, warp = me / 32 * 32, lane = me % 32;
  rows[me] = (const uint16_t*)row;
  wait_for_warp();
  for (unsigned i = 0; i < 4; ++i) {
    uint32_t pair[2];
    for (unsigned c = 0; c < 2; ++c)
      pair[c] = turned ? rows[warp + i * 8 + lane % 4 * 2 + c][lane / 4] : rows[warp + i * 8 + lane / 4][lane % 4 * 2 + c];
    r[i] = pair[0] | pair[1] << 16;
  }
  wait_for_warp();
}
inline void four(uint32_t (&r)[4], const void* row) { four_of(r, row, false); }
inline void four_turned(uint32_t (&r)[4], const void* row) { four_of(r, row, true); }
inline void bring(void* to, const void* from, bool there) {
  if (there) std::memcpy(to, from, 16);
  else std::memset(to, 0, 16);
}
inline void close() {}
template <int LATER> void await() {}
inline float two_to(float x) { return std::exp2(x); }
}  // namespace attend

typedef void* cudaStream_t;
typedef int cudaMemPool_t;
enum {
  cudaSuccess, cudaMemPoolAttrReleaseThreshold, cudaDevAttrMultiProcessorCount,
  cudaDevAttrComputeCapabilityMajor, cudaDevAttrComputeCapabilityMinor,
  cudaFuncAttributeMaxDynamicSharedMemorySize, cudaFuncAttributeNonPortableClusterSizeAllowed,
  cudaLaunchAttributeCooperative, cudaLaunchAttributeClusterDimension
};
// The device in use. What is set for its pool or for a kernel is set on no other.
inline int device_in_use() {
  const char* wanted = std::getenv("EMULATED_DEVICE");
  return wanted ? std::atoi(wanted) : 0;
}
inline int cudaGetDevice(int* device) { return *device = device_in_use(), cudaSuccess; }
inline int cudaDeviceGetDefaultMemPool(int* pool, int device) { return *pool = device, cudaSuccess; }
int cudaMemPoolSetAttribute(int pool, int, void*);
bool keeps_memory();  // whether the pool of the device in use was told to
void set_shared_memory(const void* kernel, size_t bytes);
inline int cudaMallocAsync(void** p, size_t n, cudaStream_t) {
  return !keeps_memory() || !(*p = std::aligned_alloc(256, (n + 255) / 256 * 256));
}
inline int cudaMemsetAsync(void* p, int v, size_t n, cudaStream_t) { return std::memset(p, v, n), cudaSuccess; }
inline int cudaDeviceGetAttribute(int* v, int which, int) {
  return *v = which == cudaDevAttrComputeCapabilityMajor ? 9 : which == cudaDevAttrComputeCapabilityMinor ? 0 : 8, cudaSuccess;
}
// Threads that a block may have at most: fewer stand for kernels of many registers.
inline int most_threads() {
  const char* wanted = std::getenv("EMULATED_THREADS");
  return wanted ? std::atoi(wanted) : 1024;
}
struct cudaFuncAttributes { size_t sharedSizeBytes; int maxThreadsPerBlock; };
inline int cudaFuncGetAttributes(cudaFuncAttributes* found, const void*) { return *found = {1, most_threads()}, cudaSuccess; }
template <class F> int cudaFuncSetAttribute(F kernel, int which, int value) {
  if (which == cudaFuncAttributeMaxDynamicSharedMemorySize) set_shared_memory((const void*)kernel, value);
  return cudaSuccess;
}
inline int cudaFreeAsync(void* p, cudaStream_t) { std::free(p); return cudaSuccess; }

typedef void (*Kernel)(void* arguments);
void check_shared_memory(const void* kernel, size_t bytes);  // more than 48 KiB have to be asked for
void emulate_blocks(dim3 grid, dim3 block, size_t dynamic, Kernel kernel, void* arguments);
template <class F> void emulate(const void* kernel, dim3 grid, dim3 block, size_t dynamic, F call) {
  check_shared_memory(kernel, dynamic);
  emulate_blocks(grid, block, dynamic, [](void* f) { (*(F*)f)(); }, &call);
}

// A launch of blocks that meet: all of them at once. Those of a cluster have a barrier, and memory side by side.
struct cudaLaunchAttribute { int id; struct { int cooperative; struct { unsigned x, y, z; } clusterDim; } val; };
struct cudaLaunchConfig_t {
  dim3 gridDim, blockDim;
  size_t dynamicSmemBytes;
  cudaStream_t stream;
  cudaLaunchAttribute* attrs;
  int numAttrs;
};
extern unsigned cluster_blocks;
extern Barrier* clusters;
inline void cluster_barrier() { clusters[blockIdx.x / cluster_blocks].wait(); }
inline int cudaGetLastError() { return cudaSuccess; }
template <class F> int cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* n, F, int, int) { return *n = 1, cudaSuccess; }
template <class F> int cudaOccupancyMaxActiveClusters(int* n, F, const cudaLaunchConfig_t* config) {
  return *n = config->gridDim.x > 8 ? config->gridDim.x <= 16 : 8 / config->gridDim.x, cudaSuccess;
}
void emulate_together(const cudaLaunchConfig_t* config, Kernel kernel, void* arguments);
template <class... P, class... A> int cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(P...), A... args) {
  check_shared_memory((const void*)kernel, config->dynamicSmemBytes);
  auto call = [&] { kernel(P(args)...); };
  emulate_together(config, [](void* f) { (*(decltype(call)*)f)(); }, &call);
  return cudaSuccess;
}
