"""The fixed part of generated CUDA texts in pieces: how a team of threads reduces and scans, how kernels are launched.

Comes in: a generated text. Goes out: the pieces that it uses.

`MaxSum` is the running pair of online softmax (Milakov & Gimelshein, 2018).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rag_kernels.offline.codegen.symbols import symbols

HEAD = """#include <cuda_runtime.h>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <initializer_list>
#include "rag_kernel.h"
"""


@dataclass(frozen=True, slots=True)
class Piece:
    """A definition, under the name by which other text uses it. It may use pieces before it.

    An overload is used where `of`, its type, is named as well. `calls`: the mathematical function that it calls.
    """

    name: str
    text: str
    of: str = ""
    calls: str = ""


PIECES = (
    Piece(
        "Sum",
        """\
struct Sum { template <class T> __device__ T operator()(T a, T b) const { return a + b; } };
""",
    ),
    Piece(
        "Prod",
        """\
struct Prod { template <class T> __device__ T operator()(T a, T b) const { return a * b; } };
""",
    ),
    Piece(
        "Max",
        """\
struct Max { template <class T> __device__ T operator()(T a, T b) const { return (b > a || b != b) ? b : a; } };
""",
    ),
    Piece(
        "LogSum",
        """\
struct LogSum { template <class T> __device__ T operator()(T a, T b) const { return rk_logaddexp(a, b); } };
""",
        calls="rk_logaddexp",
    ),
    Piece(
        "Min",
        """\
struct Min { template <class T> __device__ T operator()(T a, T b) const { return (b < a || b != b) ? b : a; } };
""",
    ),
    Piece(
        "join_sum",
        """\
// Adds to an element that other threads add to.
template <class T> __device__ void join_sum(T* at, T v) { atomicAdd(at, v); }
__device__ inline void join_sum(int64_t* at, int64_t v) { atomicAdd((unsigned long long*)at, (unsigned long long)v); }
""",
    ),
    Piece(
        "join_by",
        """\
// Joins an element by F, while others do.
template <size_t BYTES> struct Word { typedef unsigned type; };
template <> struct Word<8> { typedef unsigned long long type; };
template <class F, class T> __device__ void join_by(T* at, T v) {
  typedef typename Word<sizeof(T)>::type Bits;
  Bits* const word = (Bits*)at;
  Bits found = *word, before;
  do {
    T now;
    memcpy(&now, &found, sizeof(T));
    now = F()(now, v);
    Bits next;
    memcpy(&next, &now, sizeof(T));
    before = found;
    if (next == before) return;
    found = atomicCAS(word, before, next);
  } while (found != before);
}
""",
    ),
    Piece(
        "Any",
        """\
struct Any { __device__ int operator()(int a, int b) const { return a | b; } };
""",
    ),
    Piece(
        "All",
        """\
struct All { __device__ int operator()(int a, int b) const { return a & b; } };
""",
    ),
    Piece(
        "MaxSum",
        """\
// The largest number so far, and the sum of exp(x - top) over those so far.
struct MaxSum { float top; double sum; };
""",
    ),
    Piece(
        "merge",
        """\
__device__ inline MaxSum merge(MaxSum a, float v) {
  if (v > a.top) return {v, a.sum * double(expf(a.top - v)) + double(1 + (v - v))};
  if (v != -INFINITY) a.sum += double(expf(v - a.top));
  return a;
}
""",
    ),
    Piece(
        "merge",
        """\
__device__ inline MaxSum merge(MaxSum a, MaxSum b) {
  if (b.top > a.top) { const MaxSum c = a; a = b; b = c; }
  if (b.top != -INFINITY || b.sum != b.sum) a.sum += b.sum * double(expf(b.top - a.top));
  return a;
}
""",
    ),
    Piece(
        "Merge",
        """\
struct Merge { __device__ MaxSum operator()(MaxSum a, MaxSum b) const { return merge(a, b); } };
""",
    ),
    Piece(
        "Place",
        """\
// An extreme and the first index at which it stands; NaN wins, as in PyTorch.
struct Place { float value; uint32_t at; };
""",
    ),
    Piece(
        "First",
        """\
template <bool MAX> struct First {
  __device__ Place operator()(Place a, Place b) const {
    const bool nan_a = a.value != a.value, nan_b = b.value != b.value;
    const bool same = nan_a ? nan_b : a.value == b.value;
    const bool better = !nan_a && (nan_b || (MAX ? b.value > a.value : b.value < a.value));
    return better || (same && b.at < a.at) ? b : a;
  }
};
""",
    ),
    Piece(
        "MaxPlace",
        """\
using MaxPlace = First<true>;
""",
    ),
    Piece(
        "MinPlace",
        """\
using MinPlace = First<false>;
""",
    ),
    Piece(
        "take",
        """\
// The next element of a thread, which comes to them in order. One that is as bad as can be is never taken.
template <bool MAX> __device__ void take(Place& best, Place next) {
  const bool worse = MAX ? next.value <= best.value : next.value >= best.value;
  if (!worse && best.value == best.value) best = next;
}
""",
    ),
    Piece(
        "take",
        """\
// Several of them at a time; `place` gives the index of each.
template <bool MAX, int N, class F> __device__ void take(Place& best, const float (&x)[N], F place) {
  float value = best.value;
  int which = -1;
#pragma unroll
  for (int u = 0; u < N; ++u) {
    const bool better = !(MAX ? x[u] <= value : x[u] >= value) && value == value;
    value = better ? x[u] : value;
    which = better ? u : which;
  }
  if (which >= 0) best = {value, place(which)};
}
""",
    ),
    Piece(
        "place_of",
        """\
// If none was taken, all are alike, and the first one is the extreme.
__device__ inline int64_t place_of(Place best) { return best.at == UINT32_MAX ? 0 : best.at; }
""",
    ),
    Piece(
        "lane_xor",
        """\
template <class T> __device__ T lane_xor(T v, int d) { return __shfl_xor_sync(0xffffffffu, v, d); }
""",
    ),
    Piece(
        "lane_xor",
        """\
__device__ inline MaxSum lane_xor(MaxSum v, int d) { return {lane_xor(v.top, d), lane_xor(v.sum, d)}; }
""",
        of="MaxSum",
    ),
    Piece(
        "lane_xor",
        """\
__device__ inline Place lane_xor(Place v, int d) { return {lane_xor(v.value, d), lane_xor(v.at, d)}; }
""",
        of="Place",
    ),
    Piece(
        "of_lanes",
        """\
// What neighbouring lanes have together.
template <class T, class F> __device__ T of_lanes(T v, F f, int lanes) {
  for (int d = lanes / 2; d; d >>= 1) v = f(v, lane_xor(v, d));
  return v;
}
""",
    ),
    Piece(
        "of_lanes",
        """\
// Of exponentials the maximum comes first, so that each lane has one of its own to compute.
__device__ inline MaxSum of_lanes(MaxSum v, Merge, int lanes) {
  float top = v.top;
  for (int d = lanes / 2; d; d >>= 1) top = fmaxf(top, lane_xor(top, d));
  v.sum *= double(expf(v.top - (top == -INFINITY ? 0.0f : top)));
  for (int d = lanes / 2; d; d >>= 1) v.sum += lane_xor(v.sum, d);
  return {top, v.sum};
}
""",
        of="MaxSum",
    ),
    Piece(
        "take_below",
        """\
// Add to the sum of exponentials below the largest number so far.
template <int N> __device__ void take_below(float& top, float& sum, const float (&x)[N]) {
  float high = top, more = 0;
#pragma unroll
  for (int u = 0; u < N; ++u) high = fmaxf(high, x[u]);
  const float below = high == -INFINITY ? 0.0f : high;
#pragma unroll
  for (int u = 0; u < N; ++u) more += expf(x[u] - below);
  sum = sum * expf(top - below) + more;
  top = high;
}
""",
    ),
    Piece(
        "take_below_near",
        """\
// The same to some last bits, for results of sixteen bits.
template <int N> __device__ void take_below_near(float& top, float& sum, const float (&x)[N]) {
  float high = top, more = 0;
#pragma unroll
  for (int u = 0; u < N; ++u) high = fmaxf(high, x[u]);
  const float below = high == -INFINITY ? 0.0f : high;
#pragma unroll
  for (int u = 0; u < N; ++u) more += rk_exp_below(x[u], below);
  sum = sum * rk_exp_below(top, below) + more;
  top = high;
}
""",
        calls="rk_exp_below",
    ),
    Piece(
        "Pack",
        """\
// Neighbouring elements that a thread loads or stores together, sixteen bytes at a time.
template <class T, int N> struct __align__(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T x[N]; };
""",
    ),
    Piece(
        "part_of",
        """\
// The elements of a vector from one to another, where the rest is none of this row's.
template <class T, int N> __device__ Pack<T, N> part_of(const T* __restrict__ from, int64_t begin, int64_t end) {
  Pack<T, N> v{};
#pragma unroll
  for (int u = 0; u < N; ++u) {
    if (u >= begin && u < end) v.x[u] = from[u];
  }
  return v;
}
""",
    ),
    Piece(
        "put_part_of",
        """\
template <class T, int N> __device__ void put_part_of(T* to, const Pack<T, N>& v, int64_t begin, int64_t end) {
#pragma unroll
  for (int u = 0; u < N; ++u) {
    if (u >= begin && u < end) to[u] = v.x[u];
  }
}
""",
    ),
    Piece(
        "two_floats",
        """\
__device__ inline float2 two_floats(const __nv_fp8_e4m3* from) {
  __nv_fp8x2_e4m3 two;
  memcpy(&two, from, 2);
  return two.operator float2();
}
""",
        of="__nv_fp8_e4m3",
    ),
    Piece(
        "two_floats",
        """\
__device__ inline float2 two_floats(const __nv_fp8_e5m2* from) {
  __nv_fp8x2_e5m2 two;
  memcpy(&two, from, 2);
  return two.operator float2();
}
""",
        of="__nv_fp8_e5m2",
    ),
    Piece(
        "floats_of",
        """\
// Elements of eight bits as floats, two at a time.
template <class T, int N> __device__ Pack<float, N> floats_of(const Pack<T, N>& v) {
  Pack<float, N> all;
#pragma unroll
  for (int u = 0; u < N; u += 2) {
    const float2 two = two_floats(v.x + u);
    all.x[u] = two.x, all.x[u + 1] = two.y;
  }
  return all;
}
""",
    ),
    Piece(
        "rounded_two",
        """\
__device__ inline unsigned rounded_two(__nv_fp8_e4m3, float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}
""",
        of="__nv_fp8_e4m3",
    ),
    Piece(
        "rounded_two",
        """\
__device__ inline unsigned rounded_two(__nv_fp8_e5m2, float a, float b) {  // from 61440 it is infinity
  const unsigned two = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E5M2);
  return (fabsf(a) >= 61440.0f ? 0x7c : two & 0xff) | (fabsf(b) >= 61440.0f ? 0x7c00 : two & 0xff00);
}
""",
        of="__nv_fp8_e5m2",
    ),
    Piece(
        "narrowed",
        """\
// Floats rounded to eight bits, two at a time; as PyTorch has it a NaN keeps its sign.
template <class T, int N> __device__ Pack<T, N> narrowed(const Pack<float, N>& v) {
  Pack<T, N> all;
#pragma unroll
  for (int u = 0; u < N; u += 2) {
    const float a = v.x[u], b = v.x[u + 1];
    const unsigned signs = __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x73) & 0x8080;
    const unsigned short two = (unsigned short)(rounded_two(T(), a, b) | signs);
    memcpy(all.x + u, &two, 2);
  }
  return all;
}
""",
    ),
    Piece(
        "join_sums",
        """\
// Adds neighbours to neighbours that other threads add to: on Hopper four floats by one operation.
template <class T, int N> __device__ void join_sums(T* at, const Pack<T, N>& v) {
#pragma unroll
  for (int u = 0; u < N; ++u) join_sum(at + u, v.x[u]);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
template <int N> __device__ void join_sums(float* at, const Pack<float, N>& v) {
  static_assert(N % 4 == 0, "vectors of four");
#pragma unroll
  for (int u = 0; u < N; u += 4) {
    atomicAdd((float4*)(at + u), make_float4(v.x[u], v.x[u + 1], v.x[u + 2], v.x[u + 3]));
  }
}
#endif
""",
    ),
    Piece(
        "join_all",
        """\
// Joins neighbours with neighbours by F, while others do.
template <class F, class T, int N> __device__ void join_all(T* at, const Pack<T, N>& v) {
#pragma unroll
  for (int u = 0; u < N; ++u) join_by<F>(at + u, v.x[u]);
}
""",
    ),
    Piece(
        "share",
        """\
// How many of n elements a thread has that takes every step-th from its first. Loops count to it, since the compiler
// loads ahead only where it knows how often a loop runs, not where an index passes a limit in steps of a run-time size.
__device__ inline uint32_t share(int64_t n, uint32_t first, uint32_t step) {
  return first < n ? (uint32_t(n) - first - 1) / step + 1 : 0;
}
""",
    ),
    Piece(
        "row_reduce",
        """\
// Combine over threadIdx.x: shuffles inside each warp, then one warp over the partial results. All threads get it.
template <class T, class F> __device__ T row_reduce(T v, F f, T start) {
  v = of_lanes(v, f, blockDim.x < 32 ? blockDim.x : 32);
  if (blockDim.x <= 32) return v;
  __shared__ T parts[32];
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  v = threadIdx.x % 32 < blockDim.x / 32 ? parts[threadIdx.x % 32] : start;
  return of_lanes(v, f, 32);
}
""",
    ),
    Piece(
        "row_reduce_each",
        """\
// Combine several over threadIdx.x, all at the same barriers.
template <class F, class T, class... More> __device__ void row_reduce_each(F f, T start, T& first, More&... more) {
  constexpr int N = 1 + sizeof...(More);
  T* const all[N] = {&first, &more...};
  __shared__ T parts[N][32];
#pragma unroll
  for (int n = 0; n < N; ++n) *all[n] = of_lanes(*all[n], f, blockDim.x < 32 ? blockDim.x : 32);
  if (blockDim.x <= 32) return;
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    if (threadIdx.x % 32 == 0) parts[n][threadIdx.x / 32] = *all[n];
  }
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) {
    *all[n] = of_lanes(threadIdx.x % 32 < blockDim.x / 32 ? parts[n][threadIdx.x % 32] : start, f, 32);
  }
}
""",
    ),
    Piece(
        "extreme",
        """\
// The greater or the lesser; a NaN wins.
template <bool MAX> __device__ float extreme(float a, float b) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float c;
  if (MAX) asm("max.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  else asm("min.NaN.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
#else
  return b == b ? ((MAX ? b > a : b < a) ? b : a) : b;
#endif
}
""",
    ),
    Piece(
        "column_reduce",
        """\
// Combine over threadIdx.y: one column of shared memory for each threadIdx.x. All threads get it.
template <class T, class F> __device__ T column_reduce(T v, F f, T start) {
  if (blockDim.y == 1) return v;
  __shared__ T parts[1024];
  const unsigned x = blockDim.x < 32 ? blockDim.x : 32;  // of few columns a warp has each several times
  for (unsigned d = x; d < 32; d *= 2) v = f(v, lane_xor(v, d));
  __syncthreads();
  parts[threadIdx.y * blockDim.x + threadIdx.x] = v;
  __syncthreads();
  v = start;
  for (unsigned y = 0; y < blockDim.y; y += 32 / x) v = f(v, parts[y * blockDim.x + threadIdx.x]);
  return v;
}
""",
    ),
    Piece(
        "column_reduce_each",
        """\
// Combine several columns of each thread over threadIdx.y, all at the same barriers.
template <int N, class F> __device__ void column_reduce_each(float (&v)[N], F f, float start) {
  if (blockDim.y == 1) return;
  __shared__ float parts[N][1024];
  const unsigned own = threadIdx.y * blockDim.x + threadIdx.x;
  __syncthreads();
#pragma unroll
  for (int n = 0; n < N; ++n) parts[n][own] = v[n], v[n] = start;
  __syncthreads();
  for (unsigned y = 0; y < blockDim.y; ++y) {
#pragma unroll
    for (int n = 0; n < N; ++n) v[n] = f(v[n], parts[n][y * blockDim.x + threadIdx.x]);
  }
}
""",
    ),
    Piece(
        "column_before",
        """\
// What the threads before have along threadIdx.y: one column of shared memory for each threadIdx.x.
template <class T, class F> __device__ T column_before(T v, F f, T start) {
  __shared__ T parts[1024];
  __syncthreads();
  parts[threadIdx.y * blockDim.x + threadIdx.x] = v;
  __syncthreads();
  v = start;
  for (unsigned y = 0; y < threadIdx.y; ++y) v = f(v, parts[y * blockDim.x + threadIdx.x]);
  return v;
}
""",
    ),
    Piece(
        "lane_scan",
        """\
// Inclusive scan over the lanes of a warp.
template <class T, class F> __device__ T lane_scan(T v, F f) {
  for (unsigned d = 1; d < 32; d *= 2) {
    const T below = __shfl_up_sync(0xffffffffu, v, d);
    if (threadIdx.x % 32 >= d) v = f(below, v);
  }
  return v;
}
""",
    ),
    Piece(
        "row_scan",
        """\
// Exclusive scan over threadIdx.x; `total` receives the combination of all.
template <class T, class F> __device__ T row_scan(T v, F f, T start, T& total) {
  const unsigned lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  const T here = lane_scan(v, f);
  if (blockDim.x == 32) {  // a row of its own for each warp
    total = __shfl_sync(0xffffffffu, here, 31);
    const T left = __shfl_up_sync(0xffffffffu, here, 1);
    return lane ? left : start;
  }
  __shared__ T parts[32];
  __syncthreads();
  if (lane == 31) parts[warp] = here;
  __syncthreads();
  const T all = lane_scan(lane < warps ? parts[lane] : start, f);
  const T earlier = __shfl_sync(0xffffffffu, all, warp ? warp - 1 : 0), left = __shfl_up_sync(0xffffffffu, here, 1);
  total = __shfl_sync(0xffffffffu, all, warps - 1);
  const T before = warp ? earlier : start;
  return lane ? f(before, left) : before;
}
""",
    ),
    Piece(
        "blocks",
        """\
inline unsigned blocks(int64_t n) {
  RK_CHECK(n < (int64_t(1) << 31), "this kernel needs fewer than 2^31 blocks");
  return unsigned(n);
}
""",
    ),
    Piece(
        "small",
        """\
// Indices are taken apart in 32 bits; offsets have 64.
inline int64_t small(int64_t n) {
  RK_CHECK(n < (int64_t(1) << 32), "this kernel needs loops of fewer than 2^32 elements");
  return n;
}
""",
    ),
    Piece(
        "by_device",
        """\
#include <atomic>
// What a function says of the device in use, asked once on each: what is set for a kernel is set on one, and others may
// differ. Each lambda has answers of its own, and so has each library: the static number of a function that others may
// share is one for all that a process has loaded.
template <class F> static int64_t by_device(F ask) {
  static std::atomic<int64_t> answers[64];  // one more than was said
  int device = 0;
  cudaGetDevice(&device);
  if (device >= 64) return ask();
  int64_t found = answers[device];
  if (!found) answers[device] = found = ask() + 1;
  return found - 1;
}
""",
    ),
    Piece(
        "keep_pool",
        """\
// Memory on the stream. The pool keeps what it has: by default it would return everything at each synchronisation.
inline bool keep_pool() {
  int device = 0;
  cudaMemPool_t pool;
  uint64_t all = UINT64_MAX;
  return cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetDefaultMemPool(&pool, device) == cudaSuccess &&
         cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all) == cudaSuccess;
}
""",
    ),
    Piece(
        "scratch",
        """\
template <class T> T* scratch(int64_t n, cudaStream_t stream) {
  RK_CHECK(by_device([] { return keep_pool(); }), "the device has no memory pool");
  void* memory = nullptr;
  RK_CHECK(cudaMallocAsync(&memory, sizeof(T) * n, stream) == cudaSuccess, "no device memory for a partial result");
  return static_cast<T*>(memory);
}
""",
    ),
    Piece(
        "aligned",
        """\
// Whether a thread may load sixteen bytes at a time from all of these.
inline bool aligned(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (uintptr_t(p) % 16) return false;
  return true;
}
""",
    ),
    Piece(
        "fitted",
        """\
// A block with as many threads as a kernel may have: one whose threads have many registers has fewer.
template <auto KERNEL> static dim3 fitted(dim3 block) {
  const int64_t most = by_device([] {
    cudaFuncAttributes found;
    RK_CHECK(cudaFuncGetAttributes(&found, (const void*)KERNEL) == cudaSuccess, "no such kernel on this device");
    return found.maxThreadsPerBlock;
  });
  while (block.x * block.y > most) (block.y > 1 ? block.y : block.x) /= 2;
  return block;
}
""",
    ),
    Piece(
        "quad_block",
        """\
// Threads for a row of so many vectors: a warp for short ones (several rows a block), or less where rows fill warps;
// more for long ones. Where rows are read once, half of the threads with four vectors each are quicker.
inline dim3 quad_block(int64_t quads, int64_t rows, bool once = false) {
  if (quads <= 256) {
    unsigned lanes = quads <= 8 ? 4 : quads <= 16 ? 8 : quads <= 32 ? 16 : 32;
    while (rows % (32 / lanes)) lanes *= 2;
    return dim3(lanes, THREADS / lanes);
  }
  if (once && quads <= 2 * THREADS) return dim3(THREADS / 2, 1);
  return dim3(quads <= 4 * THREADS ? THREADS : quads <= 8192 ? 512 : LONG_THREADS, 1);
}
""",
    ),
    Piece(
        "row_block",
        """\
// Threads for a row: one warp for short rows (several rows a block), or less where rows fill warps; more for long ones.
inline dim3 row_block(int64_t length, int64_t rows) {
  if (length <= 1024) {
    unsigned lanes = length <= 16 ? 4 : length <= 32 ? 8 : length <= 64 ? 16 : 32;
    while (rows % (32 / lanes)) lanes *= 2;
    return dim3(lanes, THREADS / lanes);
  }
  return dim3(length <= 8 * THREADS ? THREADS : LONG_THREADS, 1);
}
""",
    ),
)


def linked(text: str, pieces: Sequence[Piece] = PIECES) -> list[Piece]:
    """Return the pieces that a text uses, and those that these use, in order.

    It reads the text, as a linker does: `symbols.py` says why.
    """
    named, kept = symbols([text]), list[Piece]()
    for piece in reversed(pieces):
        if piece.name in named and (not piece.of or piece.of in named):
            kept.append(piece)
            named |= symbols([piece.text])
    return kept[::-1]
