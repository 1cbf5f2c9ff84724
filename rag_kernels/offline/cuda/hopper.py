"""Hopper's own instructions as CUDA text: barriers in shared memory, tensor copies (TMA), products of a warpgroup.

Comes in: shapes and number formats of products. Goes out: text of device functions, and of the host function that
describes a tensor to the copy engine. Tensor maps come from the driver's entry point, so that nothing is linked; the
device part exists only where the target is sm_90a. Knows nothing of loops or values.
"""

from __future__ import annotations

WGMMA_TYPES = {"bfloat16": ("bf16", 16), "float16": ("f16", 16), "tf32": ("tf32", 8)}
"""By number format: its name in `wgmma`, and the terms of one instruction."""

TENSOR_MAP_TYPES = {
    "bfloat16": "CU_TENSOR_MAP_DATA_TYPE_BFLOAT16",
    "float16": "CU_TENSOR_MAP_DATA_TYPE_FLOAT16",
    "float32": "CU_TENSOR_MAP_DATA_TYPE_FLOAT32",
    "tf32": "CU_TENSOR_MAP_DATA_TYPE_TFLOAT32",  # of fp32, which the copy engine rounds to nearest on its way
}

DEVICE = """
#ifdef __CUDACC__
#include <cuda.h>
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define ON_HOPPER
// Barriers in shared memory, by their addresses there. `round`: the parity of the phase whose end is awaited.
__device__ __forceinline__ uint32_t tma_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ void mbarrier_init(uint32_t bar, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(bar), "r"(count) : "memory");
}
__device__ __forceinline__ void mbarrier_publish() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
__device__ __forceinline__ void mbarrier_wait(uint32_t bar, int round) {
  uint32_t done;
  do {
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(bar), "r"(round) : "memory");
  } while (!done);
}
__device__ __forceinline__ uint32_t tma_word(uint32_t at) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
  return word;
}
// One arrival, and so many bytes that copies will bring.
__device__ __forceinline__ void mbarrier_expect(uint32_t bar, int bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" :: "r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void mbarrier_arrive(uint32_t bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(bar) : "memory");
}
// At the same barrier of a block of this cluster. Reads are complete by then; `.release.cluster` would cost a fence of
// the whole device, a microsecond each.
__device__ __forceinline__ void mbarrier_arrive_at(uint32_t bar, uint32_t block) {
  asm volatile("{ .reg .b32 r; mapa.shared::cluster.u32 r, %0, %1; "
               "mbarrier.arrive.shared::cluster.b64 _, [r]; }" :: "r"(bar), "r"(block) : "memory");
}
__device__ __forceinline__ void tma_cluster_sync() {
  asm volatile("barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}
__device__ __forceinline__ uint32_t tma_cluster_rank() {
  uint32_t rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// What this thread wrote to shared memory becomes visible to copies and tensor cores.
__device__ __forceinline__ void tma_publish() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
__device__ __forceinline__ void tma_prefetch(const CUtensorMap* from_map) {
  asm volatile("prefetch.tensormap [%0];" :: "l"(from_map) : "memory");
}
// A box of a tensor, from these coordinates (innermost first), to shared memory; with a mask, to the same place in
// several blocks of the cluster. Elements outside of the tensor arrive as zeros and count as bytes.
LOADS
// Four warps multiply 64 lanes of the left factor: a thread has of each eight sums two neighbours, of the left lanes
// thread / 4 and thread / 4 + 8 of its warp's sixteen.
// Shared memory is swizzled within lines of 128, 64 or 32 bytes. Terms side by side: `low` is between groups of eight
// lanes. Lanes side by side: `high` is between slabs of 64 lanes, `low` between groups of eight terms.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t at, uint32_t high, uint32_t low, int line = 128) {
  const uint64_t swizzle = line == 128 ? 1 : line == 64 ? 2 : 3;
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(high >> 4) << 16 | uint64_t(low >> 4) << 32 | swizzle << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LATER) : "memory");
}
// Sums are not read or moved across this.
template <int N> __device__ __forceinline__ void wgmma_hold(float (&sums)[N]) {
#pragma unroll
  for (int u = 0; u < N; ++u) asm volatile("" : "+f"(sums[u]) :: "memory");
}
template <int COUNT> __device__ __forceinline__ void wgmma_more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void wgmma_fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}
// A barrier of one warpgroup; numbers from 1.
__device__ __forceinline__ void wgmma_group_sync(int number) {
  asm volatile("bar.sync %0, 128;" :: "r"(number) : "memory");
}
#endif
#endif
"""

HOST = """
inline int64_t tma_padded(int64_t elements, int bytes) { return (elements * bytes + 15) / 16 * 16 / bytes; }
inline bool tma_exists() {  // the device has Hopper's instructions, and this text was compiled for them
  int device = 0, high = 0, low = 0;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&high, cudaDevAttrComputeCapabilityMajor, device);
  cudaDeviceGetAttribute(&low, cudaDevAttrComputeCapabilityMinor, device);
  return high == 9 && low == 0;
}
inline int tma_processors() {
  int device = 0, processors = 132;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  return processors;
}
#ifdef __CUDACC__
template <class F> F tma_entry(const char* name) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult how;
#if CUDART_VERSION >= 12050
  const auto done = cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &how);
#else
  const auto done = cudaGetDriverEntryPoint(name, &found, cudaEnableDefault, &how);
#endif
  RK_CHECK(done == cudaSuccess && found, "the driver makes no tensor maps");
  return reinterpret_cast<F>(found);
}
inline CUtensorMapSwizzle tma_swizzle(int line) {
  return line == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : line == 64 ? CU_TENSOR_MAP_SWIZZLE_64B : CU_TENSOR_MAP_SWIZZLE_32B;
}
// A tensor for the copy engine: sizes and strides in elements, innermost dimension (of stride 1) first; boxes are
// swizzled within their lines, of 128, 64 or 32 bytes.
template <int RANK>
CUtensorMap tma_map(CUtensorMapDataType type, int bytes, const void* p, const int64_t (&sizes)[RANK],
                    const int64_t (&strides)[RANK], const int (&box)[RANK]) {
  static const auto encode = tma_entry<decltype(&cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  CUtensorMap from_map;
  cuuint64_t extents[RANK], steps[RANK];
  cuuint32_t boxes[RANK], each[RANK];
  for (int d = 0; d < RANK; ++d) {
    extents[d] = cuuint64_t(sizes[d]), boxes[d] = cuuint32_t(box[d]), each[d] = 1;
    if (d) steps[d - 1] = cuuint64_t(strides[d] * bytes);
  }
  const auto done = encode(&from_map, type, RANK, const_cast<void*>(p), extents, steps, boxes, each,
                           CU_TENSOR_MAP_INTERLEAVE_NONE, tma_swizzle(box[0] * bytes),
                           CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  RK_CHECK(done == CUDA_SUCCESS, "the driver refused a tensor map");
  return from_map;
}
// A tensor of channels, places (innermost axis first) and images, of which a copy takes a run of pixels: those at which
// a window begins, from `lower` to `upper` of the last place, every `each`th.
template <int RANK>
CUtensorMap tma_window_map(CUtensorMapDataType type, int bytes, const void* p, const int64_t (&sizes)[RANK],
                           const int (&lower)[RANK - 2], const int64_t (&upper)[RANK - 2],
                           const int (&every)[RANK - 2], int channels, int pixels) {
  static const auto encode = tma_entry<decltype(&cuTensorMapEncodeIm2col)>("cuTensorMapEncodeIm2col");
  CUtensorMap from_map;
  cuuint64_t extents[RANK], steps[RANK];
  cuuint32_t each[RANK];
  int below[RANK - 2], above[RANK - 2];
  for (int d = 0; d < RANK; ++d) {
    extents[d] = cuuint64_t(sizes[d]), each[d] = d && d < RANK - 1 ? cuuint32_t(every[d - 1]) : 1;
    if (d) steps[d - 1] = d == 1 ? cuuint64_t(tma_padded(sizes[0], bytes) * bytes) : steps[d - 2] * extents[d - 1];
  }
  for (int d = 0; d < RANK - 2; ++d) below[d] = lower[d], above[d] = int(upper[d]);
  const auto done = encode(&from_map, type, RANK, const_cast<void*>(p), extents, steps, below, above,
                           cuuint32_t(channels), cuuint32_t(pixels), each, CU_TENSOR_MAP_INTERLEAVE_NONE,
                           tma_swizzle(channels * bytes), CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                           CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  RK_CHECK(done == CUDA_SUCCESS, "the driver refused the tensor map of a window");
  return from_map;
}
#endif
// Whether the copy engine can read a tensor: from an address and by steps of sixteen bytes, with sizes below 2^31.
inline bool tma_reads(const void* p, int bytes, std::initializer_list<int64_t> sizes,
                      std::initializer_list<int64_t> strides) {
  bool fits = uintptr_t(p) % 16 == 0;
  for (const int64_t size : sizes) fits = fits && size > 0 && size < (int64_t(1) << 31);
  for (const int64_t step : strides) fits = fits && step * bytes % 16 == 0 && step * bytes < (int64_t(1) << 40);
  return fits;
}
"""


def _load(rank: int, *, window: bool = False) -> str:
    """Return the device functions that load a box of a tensor of this rank, to one block and to several.

    With `window` they load pixels at one step of a window, whose offsets (two axes fewer: channels and images have
    none) follow the place.
    """
    names, steps = [f"c{d}" for d in range(rank)], [f"o{d}" for d in range(rank - 2)] if window else []
    parameters = ", ".join(f"int {name}" for name in (*names, *steps))
    places = ", ".join(f"%{d + 3}" for d in range(rank))
    offsets = f", {{{', '.join(f'%{d + 3 + rank}' for d in range(len(steps)))}}}" if window else ""
    values = ", ".join([f'"r"({name})' for name in names] + [f'"h"(uint16_t({step}))' for step in steps])
    kind, name = ("im2col", "tma_load_window") if window else ("tile", "tma_load")
    copy = f"cp.async.bulk.tensor.{rank}d.shared::cluster.global.{kind}.mbarrier::complete_tx::bytes"
    inputs = f'"r"(to), "l"(from_map), "r"(bar), {values}'
    first, newline = "__device__ __forceinline__ void", "\n    " if window else ""
    return f"""\
{first} {name}(const CUtensorMap* from_map, uint32_t to, uint32_t bar, {parameters}) {{
  asm volatile("{copy} [%0], [%1, {{{places}}}], [%2]{offsets};"
               :: {inputs} : "memory");
}}
{first} {name}_all({newline}const CUtensorMap* from_map, uint32_t to, uint32_t bar, uint32_t each, {parameters}) {{
  asm volatile("{copy}.multicast::cluster [%0], [%1, {{{places}}}], [%2]{offsets}, %{rank + len(steps) + 3};"
               :: {inputs}, "h"(uint16_t(each)) : "memory");
}}
"""


def device_text(ranks: tuple[int, ...] = (2, 3, 4, 5), windows: tuple[int, ...] = ()) -> str:
    """Return the device functions, with loads of tensors of these ranks, and of windows in them."""
    return DEVICE.replace(
        "LOADS\n", "".join([*(_load(rank) for rank in ranks), *(_load(rank, window=True) for rank in windows)])
    )


def wgmma_text(columns: int, numbers: str, *, left_in_registers: bool = False) -> str:
    """Return the device function of one `wgmma` of 64 rows and so many columns.

    `wgmma_64x{columns}_{numbers}<LANES_LEFT, LANES_RIGHT>(sums, left, right, more)`: the template arguments are 1 for a
    factor whose lanes (not terms) lie side by side, which sixteen-bit numbers allow; without `more` the sums are
    overwritten. With `left_in_registers`, `..._registers<LANES_RIGHT>`: `left` has four registers of two numbers.
    """
    kind, terms = WGMMA_TYPES[numbers]
    count = columns // 2
    sums = ", ".join(f"%{n}" for n in range(count))
    held = ", ".join(f'"+f"(sums[{n}])' for n in range(count))
    sixteen = terms == 16
    if left_in_registers:
        template, left, suffix = "template <int LANES_RIGHT>", "const uint32_t (&left)[4]", "_registers"
        factor = f"{{%{count}, %{count + 1}, %{count + 2}, %{count + 3}}}"
        values = '"r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(more)'
        right, flags = count + 4, ['"n"(LANES_RIGHT)'] if sixteen else []
    else:
        template, left, suffix = "template <int LANES_LEFT, int LANES_RIGHT>", "uint64_t left", ""
        factor, values = f"%{count}", '"l"(left), "l"(right), "r"(more)'
        right, flags = count + 1, ['"n"(LANES_LEFT)', '"n"(LANES_RIGHT)'] if sixteen else []
    places = "".join(f", %{right + 2 + n}" for n in range(len(flags)))
    return f"""\
#if defined(__CUDACC__) && defined(ON_HOPPER)
{template}
__device__ __forceinline__ void wgmma_64x{columns}_{numbers}{suffix}(
    float (&sums)[{count}], {left}, uint64_t right, int more) {{
  asm volatile("{{ .reg .pred p; setp.ne.b32 p, %{right + 1}, 0;\\n"
      "wgmma.mma_async.sync.aligned.m64n{columns}k{terms}.f32.{kind}.{kind} "
      "{{{sums}}}, {factor}, %{right}, p, 1, 1{places}; }}"
      : {held}
      : {", ".join([values, *flags])});
}}
#endif
"""
