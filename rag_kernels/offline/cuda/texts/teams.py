"""How the threads of a block reduce and scan together, along rows and columns.

Goes out: pieces of CUDA text, in the order in which they stand.
"""

from __future__ import annotations

from rag_kernels.offline.cuda.texts.piece import Piece

TEAMS = (
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
// Combine over threadIdx.x: shuffles inside each warp, then each warp over the partial results, so that all threads get
// it, or the first warp for itself.
template <class T, class F> __device__ T row_reduce(T v, F f, T start, bool first = false) {
  v = of_lanes(v, f, blockDim.x < 32 ? blockDim.x : 32);
  if (blockDim.x <= 32) return v;
  __shared__ T parts[32];
  __syncthreads();
  if (threadIdx.x % 32 == 0) parts[threadIdx.x / 32] = v;
  __syncthreads();
  if (first && threadIdx.x >= 32) return v;
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
)
