"""The fixed text of sorts of short lanes in CUDA: in registers, in shared memory, and the first few of a long lane.

Goes out: pieces of the namespace that `order.py` begins and ends.
"""

from __future__ import annotations

REGISTERS = """
// Lanes in registers: of `width` elements, a power of two, thread `t` of a lane's has E neighbours.
RK_INLINE uint64_t from_lane(uint64_t p, unsigned away) { return __shfl_xor_sync(~0u, p, away); }
RK_INLINE Wide from_lane(const Wide& p, unsigned away) {
  return Wide{__shfl_xor_sync(~0u, p.key, away), __shfl_xor_sync(~0u, p.place, away)};
}
template <class P> RK_INLINE void keep(P& mine, const P& theirs, bool less) {
  if ((theirs < mine) == less) mine = theirs;
}
template <class P> RK_INLINE void put_in_order(P& a, P& b) {
  if (b < a) {
    const P c = a;
    a = b, b = c;
  }
}
// Keeps the lesser or the greater of what a thread and the one `away` have; with MIRROR from the other end of that.
template <bool MIRROR, unsigned E, class P>
__device__ void exchange(P (&mine)[E], P* s, unsigned away, bool less) {
  if (away < 32) {
#pragma unroll
    for (unsigned e = 0; e < (E + 1) / 2; ++e) {
      const unsigned o = E - 1 - e;
      const P first = from_lane(mine[MIRROR ? o : e], away), second = from_lane(mine[MIRROR ? e : o], away);
      keep(mine[e], first, less);
      if (o != e) keep(mine[o], second, less);
    }
    return;
  }
  __syncthreads();
#pragma unroll
  for (unsigned e = 0; e < E; ++e) s[e * blockDim.x + threadIdx.x] = mine[e];
  __syncthreads();
#pragma unroll
  for (unsigned e = 0; e < E; ++e)
    keep(mine[e], s[(MIRROR ? E - 1 - e : e) * blockDim.x + (threadIdx.x ^ away)], less);
}
template <unsigned E, class P> __device__ void sort_in_registers(P (&mine)[E], P* s, unsigned width, unsigned t) {
#pragma unroll
  for (unsigned size = 2; size <= E; size *= 2) {
#pragma unroll
    for (unsigned i = 0; i < E; ++i)
      if ((i ^ (size - 1)) > i) put_in_order(mine[i], mine[i ^ (size - 1)]);
#pragma unroll
    for (unsigned half = size / 4; half > 0; half /= 2)
#pragma unroll
      for (unsigned i = 0; i < E; ++i)
        if (!(i & half)) put_in_order(mine[i], mine[i + half]);
  }
  for (unsigned threads = 2; threads <= width / E; threads *= 2) {
    exchange<true>(mine, s, threads - 1, !(t & threads / 2));
    for (unsigned away = threads / 4; away > 0; away /= 2) exchange<false>(mine, s, away, !(t & away));
#pragma unroll
    for (unsigned half = E / 2; half > 0; half /= 2)
#pragma unroll
      for (unsigned i = 0; i < E; ++i)
        if (!(i & half)) put_in_order(mine[i], mine[i + half]);
  }
}
// Short lanes of at most `1 << bits` elements, several a block; `s` has room for E + 1 pairs a thread.
template <unsigned E, class P, class Key, class Put>
__device__ void sort_lanes(P* s, int64_t lanes, int64_t n, int64_t wanted, unsigned bits, Key key, Put put) {
  const unsigned threads = (1u << bits) / E, across = blockDim.x / threads;
  const unsigned t = threadIdx.x & (threads - 1), own = threadIdx.x / threads;
  const int64_t first = int64_t(blockIdx.x) * across;
  P mine[E];
#pragma unroll
  for (unsigned e = 0; e < E; ++e) {
    const int64_t j = e * threads + t;
    mine[e] = last(P());
    if (first + own < lanes && j < n) mine[e] = placed(key(first + own, j), uint32_t(j));
  }
  sort_in_registers(mine, s, 1u << bits, t);
  __syncthreads();
#pragma unroll
  for (unsigned e = 0; e < E; ++e) s[threadIdx.x * (E + 1) + e] = mine[e];
  __syncthreads();
  for (unsigned u = threadIdx.x; u < across << bits; u += blockDim.x) {
    const int64_t lane = first + (u >> bits), j = u & ((1u << bits) - 1);
    if (lane < lanes && j < wanted) put(lane, j, place_of(s[u / E * (E + 1) + u % E]));
  }
}
"""


RUNS = """
// Sorts runs of `width` elements, a power of two, of which there are `all` together.
template <class P> __device__ void sort_runs(P* s, unsigned all, unsigned width) {
  for (unsigned size = 2; size <= width; size *= 2)
    for (unsigned half = size / 2; half > 0; half /= 2) {
      __syncthreads();
      for (unsigned t = threadIdx.x; t < all / 2; t += blockDim.x) {
        const unsigned i = (t & ~(half - 1)) * 2 + (t & (half - 1));
        const unsigned j = half == size / 2 ? i ^ (size - 1) : i + half;
        const P a = s[i], b = s[j];
        if (b < a) s[i] = b, s[j] = a;
      }
    }
  __syncthreads();
}
// Sorts the first `have` elements, behind which there is room up to the next power of two.
template <class P> __device__ void sort_few(P* s, unsigned have) {
  unsigned size = 2;
  while (size < have) size *= 2;
  for (unsigned t = have + threadIdx.x; t < size; t += blockDim.x) s[t] = last(P());
  sort_runs(s, size, size);
}
"""


FIRST = """
// The first `wanted` of `n` pairs, through which a block goes once: what is less than the last of the first so far is
// kept, and sorted when there is much of it. `room` is a power of two.
template <class P, class Pair, class Put>
__device__ void first_of(P* s, unsigned& count, unsigned room, int64_t n, unsigned wanted, Pair pair, Put put) {
  constexpr unsigned EACH = 2;
  const unsigned stretch = EACH * blockDim.x, few = wanted < room / 8 ? 4 * wanted : room / 2;
  const unsigned limit = few < room - stretch ? few : room - stretch;
  P most = last(P()), ahead[EACH];
  const auto load = [&](int64_t start) {
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u) {
      const int64_t j = start + u * blockDim.x + threadIdx.x;
      ahead[u] = j < n ? pair(j) : last(P());
    }
  };
  if (threadIdx.x == 0) count = 0;
  load(0);
  __syncthreads();
  for (int64_t start = 0; start < n; start += stretch) {
    P mine[EACH];
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u) mine[u] = ahead[u];
    load(start + stretch);
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u)
      if (mine[u] < most) s[atomicAdd(&count, 1u)] = mine[u];
    __syncthreads();
    const unsigned have = count;
    if (have > limit || start + stretch >= n) {
      sort_few(s, have);
      if (have >= wanted) most = s[wanted - 1];
      if (threadIdx.x == 0) count = have < wanted ? have : wanted;
    }
    __syncthreads();
  }
  for (unsigned t = threadIdx.x; t < wanted; t += blockDim.x) put(int64_t(t), s[t]);
}
"""
