// rag_tma.h: barriers in shared memory, the copy engine (TMA) and clusters, for kernels that include it after
// rag_kernel.h. Device functions for sm_90 and later, and the host functions that describe tensors and launch clusters;
// these need nvcc for the whole source (a split one may use the device functions, tma_reads and tma_padded).
//
// A copy: one thread says mbarrier_expect(bar, bytes), then tma_load; all wait for the phase:
// mbarrier_wait(bar, phase), where `phase` is 0 the first time that a barrier is used and 1 the second, by turns.
#pragma once
#include "rag_kernel.h"
#if RK_HOST
#include <initializer_list>
#endif
#if defined(__CUDACC__) && !defined(__CUDACC_RTC__)
#include <cuda.h>
#include <cuda_runtime.h>
#elif defined(__CUDACC_RTC__) && !defined(__cuda_cuda_h__)
struct alignas(64) CUtensorMap { unsigned long long opaque[16]; };
#endif

#if RK_DEVICE && defined(__CUDACC__) && (!defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900)
namespace rk {

// Barriers: eight bytes of shared memory, at a multiple of eight; by their address there.
__device__ __forceinline__ uint32_t tma_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void mbarrier_init(uint32_t bar, int arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(arrivals) : "memory");
}
// After all are initialized, before __syncthreads() or cluster_sync().
__device__ __forceinline__ void mbarrier_publish() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, int phase) {
  uint32_t done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar), "r"(phase) : "memory");
  } while (!done);
}
// One arrival, and so many bytes that copies will bring.
__device__ __forceinline__ void mbarrier_expect(uint32_t bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
// At the same barrier of another block of the cluster, for what was read. What was written to that block's memory needs
// cluster_sync(): a release for the cluster would cost a fence of the whole device here.
__device__ __forceinline__ void mbarrier_arrive_at(uint32_t bar, uint32_t block) {
  asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; "
               "mbarrier.arrive.shared::cluster.b64 _, [r]; }" :: "r"(bar), "r"(block) : "memory");
}
// Barriers by number (1 to 15) of THREADS of the block: `sync` waits for all of them, `arrive` does not wait.
template <int THREADS> __device__ __forceinline__ void group_sync(int number) {
  asm volatile("bar.sync %0, %1;" :: "r"(number), "n"(THREADS) : "memory");
}
template <int THREADS> __device__ __forceinline__ void group_arrive(int number) {
  asm volatile("bar.arrive %0, %1;" :: "r"(number), "n"(THREADS) : "memory");
}
// What this thread wrote to shared memory becomes visible to the copy engine and to wgmma.
__device__ __forceinline__ void tma_publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// A box of a tensor, from these coordinates (innermost first), to shared memory at a multiple of 128 bytes (1024 where
// it is swizzled by 128). Elements outside of the tensor arrive as zeros, and count as bytes. Its first element lies at
// a multiple of 16 bytes, outside of the tensor too; elsewhere the load is an illegal instruction. The map is a kernel's
// parameter: `const __grid_constant__ CUtensorMap map`.
#define RK_TMA(RANK, PLACES, STORE_PLACES, MASK, VALUES, ...)                                                         \
  __device__ __forceinline__ void tma_load(const CUtensorMap* map, uint32_t to, uint32_t bar, __VA_ARGS__) {          \
    asm volatile("cp.async.bulk.tensor." RANK ".shared::cluster.global.tile.mbarrier::complete_tx::bytes "            \
                 "[%0], [%1, {" PLACES "}], [%2];" :: "r"(to), "l"(map), "r"(bar), VALUES : "memory");                \
  }                                                                                                                  \
  /* The same to the same place in all blocks of the cluster whose bit of the mask is set, at their barriers. */      \
  __device__ __forceinline__ void tma_load_all(const CUtensorMap* map, uint32_t to, uint32_t bar, uint32_t mask,      \
                                               __VA_ARGS__) {                                                        \
    asm volatile("cp.async.bulk.tensor." RANK ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"             \
                 ".multicast::cluster [%0], [%1, {" PLACES "}], [%2], " MASK ";"                                      \
                 :: "r"(to), "l"(map), "r"(bar), VALUES, "h"(uint16_t(mask)) : "memory");                             \
  }                                                                                                                  \
  __device__ __forceinline__ void tma_store(const CUtensorMap* map, uint32_t from, __VA_ARGS__) {                     \
    asm volatile("cp.async.bulk.tensor." RANK ".global.shared::cta.tile.bulk_group [%1, {" STORE_PLACES "}], [%0];"   \
                 :: "r"(from), "l"(map), VALUES : "memory");                                                          \
  }
#define RK_R(...) __VA_ARGS__
RK_TMA("1d", "%3", "%2", "%4", RK_R("r"(c0)), int c0)
RK_TMA("2d", "%3, %4", "%2, %3", "%5", RK_R("r"(c0), "r"(c1)), int c0, int c1)
RK_TMA("3d", "%3, %4, %5", "%2, %3, %4", "%6", RK_R("r"(c0), "r"(c1), "r"(c2)), int c0, int c1, int c2)
RK_TMA("4d", "%3, %4, %5, %6", "%2, %3, %4, %5", "%7", RK_R("r"(c0), "r"(c1), "r"(c2), "r"(c3)), int c0, int c1, int c2,
       int c3)
RK_TMA("5d", "%3, %4, %5, %6, %7", "%2, %3, %4, %5, %6", "%8", RK_R("r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4)),
       int c0, int c1, int c2, int c3, int c4)
// Channels of a run of pixels of an image (tma_window_map), at one step of a window, whose offsets follow the place:
// channel, the first pixel's coordinates (innermost first), image; then an offset for each axis between these two.
#define RK_TMA_WINDOW(RANK, PLACES, OFFSETS, MASK, VALUES, ...)                                                       \
  __device__ __forceinline__ void tma_load_window(const CUtensorMap* map, uint32_t to, uint32_t bar, __VA_ARGS__) {   \
    asm volatile("cp.async.bulk.tensor." RANK ".shared::cluster.global.im2col.mbarrier::complete_tx::bytes "          \
                 "[%0], [%1, {" PLACES "}], [%2], {" OFFSETS "};"                                                     \
                 :: "r"(to), "l"(map), "r"(bar), VALUES : "memory");                                                  \
  }                                                                                                                  \
  __device__ __forceinline__ void tma_load_window_all(const CUtensorMap* map, uint32_t to, uint32_t bar,              \
                                                      uint32_t mask, __VA_ARGS__) {                                  \
    asm volatile("cp.async.bulk.tensor." RANK ".shared::cluster.global.im2col.mbarrier::complete_tx::bytes"           \
                 ".multicast::cluster [%0], [%1, {" PLACES "}], [%2], {" OFFSETS "}, " MASK ";"                       \
                 :: "r"(to), "l"(map), "r"(bar), VALUES, "h"(uint16_t(mask)) : "memory");                             \
  }
#define RK_H(x) "h"(uint16_t(x))
RK_TMA_WINDOW("3d", "%3, %4, %5", "%6", "%7", RK_R("r"(c0), "r"(c1), "r"(c2), RK_H(o0)), int c0, int c1, int c2, int o0)
RK_TMA_WINDOW("4d", "%3, %4, %5, %6", "%7, %8", "%9",
              RK_R("r"(c0), "r"(c1), "r"(c2), "r"(c3), RK_H(o0), RK_H(o1)), int c0, int c1, int c2, int c3, int o0,
              int o1)
RK_TMA_WINDOW("5d", "%3, %4, %5, %6, %7", "%8, %9, %10", "%11",
              RK_R("r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4), RK_H(o0), RK_H(o1), RK_H(o2)), int c0, int c1, int c2,
              int c3, int c4, int o0, int o1, int o2)
__device__ __forceinline__ void tma_prefetch(const CUtensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(map) : "memory");
}
// Bytes side by side, without a map: multiples of 16, at multiples of 16.
__device__ __forceinline__ void bulk_load(uint32_t to, const void* from, int bytes, uint32_t bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               :: "r"(to), "l"(from), "r"(bytes), "r"(bar) : "memory");
}
__device__ __forceinline__ void bulk_store(void* to, uint32_t from, int bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
               :: "l"(to), "r"(from), "r"(bytes) : "memory");
}
// Stores of this thread: tma_publish and a barrier, the store, commit; their source may be written again after
// store_wait_read<0>, and they have arrived after store_wait<0> (which a block needs before it ends).
__device__ __forceinline__ void store_commit() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void store_wait_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" :: "n"(LATER) : "memory");
}
template <int LATER> __device__ __forceinline__ void store_wait() {
  asm volatile("cp.async.bulk.wait_group %0;" :: "n"(LATER) : "memory");
}

// Clusters: blocks that see each other's shared memory. None may end while another still reads from it.
__device__ __forceinline__ void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The same place in the shared memory of another block of the cluster, to be read and written as any pointer.
template <class T> __device__ __forceinline__ T* cluster_pointer(T* p, uint32_t block) {
  uint64_t there;
  asm volatile("mapa.u64 %0, %1, %2;" : "=l"(there) : "l"(reinterpret_cast<uint64_t>(p)), "r"(block));
  return reinterpret_cast<T*>(there);
}

}  // namespace rk
#endif

#if RK_HOST
namespace rk {

// Whether the copy engine can read a tensor: from an address and by steps of sixteen bytes, with sizes below 2^31.
template <class T>
bool tma_reads(const T* p, std::initializer_list<int64_t> sizes, std::initializer_list<int64_t> strides) {
  bool fits = uintptr_t(p) % 16 == 0;
  for (const int64_t size : sizes) fits = fits && size > 0 && size < (int64_t(1) << 31);
  for (const int64_t stride : strides) {
    const int64_t step = stride * int64_t(sizeof(T));
    fits = fits && step % 16 == 0 && step < (int64_t(1) << 40);
  }
  return fits;
}
// So many elements, filled up to whole sixteen bytes.
template <class T> int64_t tma_padded(int64_t elements) {
  constexpr int64_t bytes = sizeof(T);
  return (elements * bytes + 15) / 16 * 16 / bytes;
}

}  // namespace rk
#endif

#if RK_HOST && defined(__CUDACC__) && !defined(__CUDACC_RTC__)
namespace rk {

template <class T> struct TmaType;
template <> struct TmaType<float> { static constexpr auto value = CU_TENSOR_MAP_DATA_TYPE_FLOAT32; };
template <> struct TmaType<int32_t> { static constexpr auto value = CU_TENSOR_MAP_DATA_TYPE_INT32; };
template <> struct TmaType<uint8_t> { static constexpr auto value = CU_TENSOR_MAP_DATA_TYPE_UINT8; };
template <> struct TmaType<int8_t> { static constexpr auto value = CU_TENSOR_MAP_DATA_TYPE_UINT8; };
#ifdef __CUDA_FP16_TYPES_EXIST__
template <> struct TmaType<__half> { static constexpr auto value = CU_TENSOR_MAP_DATA_TYPE_FLOAT16; };
#endif
#ifdef __CUDA_BF16_TYPES_EXIST__
template <> struct TmaType<__nv_bfloat16> { static constexpr auto value = CU_TENSOR_MAP_DATA_TYPE_BFLOAT16; };
#endif

// A function of the driver; nothing is linked.
template <class F> F tma_entry(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult how;
#if CUDART_VERSION >= 12050
  const auto asked = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &how);
#else
  const auto asked = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &how);
#endif
  RK_CHECK(asked == cudaSuccess && found, "the driver makes no tensor maps");
  return reinterpret_cast<F>(found);
}
inline CUtensorMapSwizzle tma_swizzle(int line) {
  return line == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : line == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
       : line == 32 ? CU_TENSOR_MAP_SWIZZLE_32B : CU_TENSOR_MAP_SWIZZLE_NONE;
}
// A tensor for the copy engine: sizes and strides in elements, innermost dimension (of stride 1) first. The address and
// all strides are multiples of 16 bytes (`tma_reads` tells); `box` has at most 256 elements a dimension, and innermost
// as many bytes as the swizzle (128, 64, 32; 0 is none, then any multiple of 16). With CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
// as `type`, floats are rounded to TF32 on their way.
template <int RANK, class T>
CUtensorMap tma_map(const T* p, const int64_t (&sizes)[RANK], const int64_t (&strides)[RANK], const int (&box)[RANK],
                    int swizzle = 128, CUtensorMapDataType type = TmaType<T>::value) {
  static const auto encode = tma_entry<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  CUtensorMap map;
  cuuint64_t extents[RANK], steps[RANK];
  cuuint32_t boxes[RANK], each[RANK];
  for (int d = 0; d < RANK; ++d) {
    extents[d] = cuuint64_t(sizes[d]), boxes[d] = cuuint32_t(box[d]), each[d] = 1;
    if (d) steps[d - 1] = cuuint64_t(strides[d]) * sizeof(T);
  }
  const auto done = encode(&map, type, RANK, const_cast<T*>(p), extents, steps, boxes, each,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, tma_swizzle(swizzle), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  RK_CHECK(done == CUDA_SUCCESS, "the driver refused a tensor map");
  return map;
}
// A tensor of channels (a pixel's are `tma_padded` elements apart), places (innermost axis first) and images, of which
// tma_load_window takes `pixels` pixels: those at which a window begins, from `lower` to `upper` of the last place,
// every `each`th; and `channels` of each, swizzled by their bytes.
template <int RANK, class T>
CUtensorMap tma_window_map(const T* p, const int64_t (&sizes)[RANK], const int (&lower)[RANK - 2],
                           const int64_t (&upper)[RANK - 2], const int (&every)[RANK - 2], int channels, int pixels,
                           CUtensorMapDataType type = TmaType<T>::value) {
  static const auto encode = tma_entry<decltype(&cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  CUtensorMap map;
  cuuint64_t extents[RANK], steps[RANK];
  cuuint32_t each[RANK];
  int below[RANK - 2], above[RANK - 2];
  for (int d = 0; d < RANK; ++d) {
    extents[d] = cuuint64_t(sizes[d]), each[d] = d && d < RANK - 1 ? cuuint32_t(every[d - 1]) : 1;
    if (d) steps[d - 1] = d == 1 ? cuuint64_t(tma_padded<T>(sizes[0])) * sizeof(T) : steps[d - 2] * extents[d - 1];
  }
  for (int d = 0; d < RANK - 2; ++d) below[d] = lower[d], above[d] = int(upper[d]);
  const auto done = encode(&map, type, RANK, const_cast<T*>(p), extents, steps, below, above, cuuint32_t(channels),
                           cuuint32_t(pixels), each, CU_TENSOR_MAP_INTERLEAVE_NONE,
                           tma_swizzle(channels * int(sizeof(T))), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  RK_CHECK(done == CUDA_SUCCESS, "the driver refused the tensor map of a window");
  return map;
}

}  // namespace rk
#endif

#if RK_HOST && (defined(__CUDACC__) || defined(RK_EMULATED)) && !defined(__CUDACC_RTC__)
namespace rk {

// Whether the device has Hopper's own instructions.
inline bool on_hopper() {
  int device = 0, high = 0, low = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&high, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&low, cudaDevAttrComputeCapabilityMinor, device);
  return high == 9 && low == 0;
}
// The same, and that the device code of a kernel with barriers in its shared memory was compiled for it.
inline bool built_for_hopper(const void* kernel) {
  cudaFuncAttributes found;
  return on_hopper() && cudaFuncGetAttributes(&found, kernel) == cudaSuccess && found.sharedSizeBytes > 0;
}
inline int processors() {
  int device = 0, found = 132;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&found, cudaDevAttrMultiProcessorCount, device);
  return found;
}
inline cudaLaunchConfig_t cluster_config(cudaLaunchAttribute* attribute, dim3 grid, dim3 block, int cluster,
                                         int shared) {
  attribute->id = cudaLaunchAttributeClusterDimension;
  attribute->val.clusterDim.x = unsigned(cluster), attribute->val.clusterDim.y = attribute->val.clusterDim.z = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = grid, config.blockDim = block, config.dynamicSmemBytes = size_t(shared);
  config.attrs = attribute, config.numAttrs = 1;
  return config;
}
// How many clusters there is room for at once, not all processors have neighbours left; for a kernel that may have so
// much dynamic shared memory from here on.
template <class Kernel> int cluster_places(Kernel kernel, dim3 block, int cluster, int shared) {
  const auto raised = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  RK_CHECK(raised == cudaSuccess, "this kernel needs more shared memory than the device has");
  if (cluster == 1) return processors();
  cudaLaunchAttribute attribute[1];
  const cudaLaunchConfig_t config = cluster_config(attribute, dim3(unsigned(cluster)), block, cluster, shared);
  int places = 0;
  RK_CHECK(cudaOccupancyMaxActiveClusters(&places, kernel, &config) == cudaSuccess && places, "no room for a cluster");
  return places;
}
// Launch `cluster` blocks to a cluster along x (up to 8; 16 need an attribute of the function): on a stream, for a
// kernel that may have so much shared memory (cluster_places sees to it), or on that of a tensor.
template <class... P, class... A>
void launch_clusters(void (*kernel)(P...), dim3 grid, dim3 block, int cluster, int shared, cudaStream_t stream,
                     A... args) {
  cudaLaunchAttribute attribute[1];
  cudaLaunchConfig_t config = cluster_config(attribute, grid, block, cluster, shared);
  config.stream = stream;
  RK_CHECK(cudaLaunchKernelEx(&config, kernel, P(args)...) == cudaSuccess, "the launch failed");
}
template <class... P, class T, class... A>
void launch_clusters(void (*kernel)(P...), dim3 grid, dim3 block, int cluster, int shared, const Tensor<T>& t,
                     A... args) {
  if (shared > 48 * 1024) cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, shared);
  launch_clusters(kernel, grid, block, cluster, shared, static_cast<cudaStream_t>(rk::stream(t)), args...);
}

}  // namespace rk
#endif
