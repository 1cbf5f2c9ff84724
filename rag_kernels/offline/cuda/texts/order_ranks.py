"""The fixed text of elements of a rank in CUDA: in a warp's registers, in a block, and in a lane that blocks share.

Goes out: pieces of the namespace that `order.py` begins and ends.
"""

from __future__ import annotations

PICK = """
RK_INLINE unsigned warp_sum(unsigned v) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  return __reduce_add_sync(~0u, v);
#else
  for (unsigned d = 16; d > 0; d /= 2) v += __shfl_xor_sync(~0u, v, d);
  return v;
#endif
}
// The element of rank `rank` of a lane that a warp has in registers, E elements a thread: keys are halved until they
// hold one, or are one. With `nans` the first NaN is taken if there is any.
template <unsigned E, class K, class Put>
__device__ void pick(const K (&mine)[E], unsigned n, unsigned rank, bool nans, Put put) {
  const unsigned in_warp = threadIdx.x % 32;
  if (nans) {
    unsigned many = 0;
#pragma unroll
    for (unsigned e = 0; e < E; ++e) many += mine[e] == K(~K(0)) && e * 32 + in_warp < n;
    many = warp_sum(many);
    if (many) rank = n - many;
  }
  K low = 0, high = K(~K(0));
  unsigned before = 0, within = 32 * E;  // elements below `low`; those from it to `high`
  while (low < high && within > 1) {
    const K middle = low + (high - low) / 2;
    unsigned less = 0;
#pragma unroll
    for (unsigned e = 0; e < E; ++e) less += mine[e] <= middle;
    less = warp_sum(less);
    if (rank < less) high = middle, within = less - before;
    else low = middle + 1, within -= less - before, before = less;
  }
  unsigned left = rank - before;
  bool done = false;
#pragma unroll
  for (unsigned e = 0; e < E; ++e) {
    const bool is_here = mine[e] >= low && mine[e] <= high;
    const unsigned here = __ballot_sync(~0u, is_here), many = __popc(here);
    if (!done && left < many) {
      done = true;
      if (is_here && __popc(here & ((1u << in_warp) - 1)) == left) put(e * 32 + in_warp);
    } else if (!done) {
      left -= many;
    }
  }
}
"""


OWN = """
// The elements of some ranks of a lane that a thread has in registers: each is compared with each.
template <unsigned E, class K, unsigned R, class Put>
__device__ void pick_alone(const K (&mine)[E], unsigned n, const unsigned (&ranks)[R], bool nans, Put put) {
  unsigned before[E], many = 0;
#pragma unroll
  for (unsigned e = 0; e < E; ++e) before[e] = 0, many += nans && mine[e] == K(~K(0)) && e < n;
#pragma unroll
  for (unsigned b = 1; b < E; ++b) {
#pragma unroll
    for (unsigned a = 0; a < b; ++a) {
      const bool first = mine[a] <= mine[b];
      before[b] += first, before[a] += !first;
    }
  }
#pragma unroll
  for (unsigned r = 0; r < R; ++r) {
    const unsigned rank = many ? n - many : ranks[r];
    unsigned from = 0;
#pragma unroll
    for (unsigned e = 1; e < E; ++e) from = before[e] == rank ? e : from;
    put(r, from);
  }
}
"""


RANKS = """
// Pairs by digits of eleven bits, from the highest on: those of the key, then those of the place.
constexpr unsigned PLACES = 2048;
template <class P> struct Digit;
template <> struct Digit<uint64_t> {
  RK_INLINE static unsigned shift(unsigned pass) {
    return pass < 3 ? pass < 1 ? 53 : pass < 2 ? 42 : 32 : pass < 4 ? 21 : pass < 5 ? 10 : 0;
  }
  RK_INLINE static uint64_t down_to(uint64_t p, unsigned pass) { return p >> shift(pass); }  // with all before it
  RK_INLINE static bool fits(uint64_t p, uint64_t chosen, unsigned pass) {
    return pass == 0 || down_to(p, pass - 1) == down_to(chosen, pass - 1);
  }
  RK_INLINE static bool is_up_to(uint64_t p, uint64_t chosen, unsigned pass) {
    return down_to(p, pass) <= down_to(chosen, pass);
  }
  RK_INLINE static unsigned of(uint64_t p, unsigned pass) {
    return unsigned(down_to(p, pass)) & (pass % 3 < 2 ? 2047 : 1023);
  }
  RK_INLINE static void choose(uint64_t& chosen, unsigned pass, unsigned d) { chosen |= uint64_t(d) << shift(pass); }
};
template <> struct Digit<Wide> {
  RK_INLINE static unsigned shift(unsigned pass) {
    return pass < 6 ? pass < 5 ? 53 - 11 * pass : 0 : pass < 7 ? 21 : pass < 8 ? 10 : 0;
  }
  RK_INLINE static bool fits(const Wide& p, const Wide& chosen, unsigned pass) {
    if (pass == 0) return true;
    if (pass <= 6) return p.key >> shift(pass - 1) == chosen.key >> shift(pass - 1);
    return p.key == chosen.key && p.place >> shift(pass - 1) == chosen.place >> shift(pass - 1);
  }
  RK_INLINE static bool is_up_to(const Wide& p, const Wide& chosen, unsigned pass) {
    if (pass < 6) return p.key >> shift(pass) <= chosen.key >> shift(pass);
    return p.key < chosen.key || (p.key == chosen.key && p.place >> shift(pass) <= chosen.place >> shift(pass));
  }
  RK_INLINE static unsigned of(const Wide& p, unsigned pass) {
    const unsigned all = pass == 5 ? 511 : pass == 8 ? 1023 : 2047;
    return unsigned(pass < 6 ? p.key >> shift(pass) : p.place >> shift(pass)) & all;
  }
  RK_INLINE static void choose(Wide& chosen, unsigned pass, unsigned d) {
    if (pass < 6) chosen.key |= uint64_t(d) << shift(pass);
    else chosen.place |= d << shift(pass);
  }
};
// What a block shares of a choice: sums of its warps, and what was found.
struct Found { unsigned sums[32], digit, rank, many, nans; };
// Chooses the digit in which the element of a rank is, by how many have each; the rank becomes that among these.
template <class P>
__device__ void choose_digit(const volatile unsigned* counts, Found& found, P& chosen, unsigned& rank, unsigned pass) {
  const unsigned each = PLACES / blockDim.x, in_warp = threadIdx.x % 32, first = threadIdx.x * each;
  unsigned mine = 0;
  for (unsigned d = 0; d < each; ++d) mine += counts[first + d];
  unsigned sum = mine;
  for (unsigned d = 1; d < 32; d *= 2) {
    const unsigned more = __shfl_up_sync(~0u, sum, d);
    if (in_warp >= d) sum += more;
  }
  __syncthreads();
  if (in_warp == 31) found.sums[threadIdx.x / 32] = sum;
  __syncthreads();
  sum -= mine;
  for (unsigned warp = 0; warp < threadIdx.x / 32; ++warp) sum += found.sums[warp];
  if (rank >= sum && rank < sum + mine) {
    unsigned d = first, many = counts[d];
    while (rank >= sum + many) sum += many, many = counts[++d];
    found.digit = d, found.rank = rank - sum, found.many = many;
  }
  __syncthreads();
  Digit<P>::choose(chosen, pass, found.digit);
  rank = found.rank;
}
template <class P> RK_INLINE bool is_nan(const P& p) { return key_of(p) == key_of(last(P())); }
// Calls `each` with the pairs of a lane from `begin` to before `end`, several of which are on their way at once.
template <class Pair, class Each> __device__ void through(int64_t begin, int64_t end, Pair pair, Each each) {
  constexpr unsigned AHEAD = 4;
  for (int64_t start = begin + threadIdx.x; start < end; start += AHEAD * blockDim.x) {
    decltype(pair(start)) ahead[AHEAD];
#pragma unroll
    for (unsigned u = 0; u < AHEAD; ++u) {
      const int64_t j = start + u * blockDim.x;
      ahead[u] = pair(j < end ? j : start);
    }
#pragma unroll
    for (unsigned u = 0; u < AHEAD; ++u)
      if (start + u * blockDim.x < end) each(ahead[u]);
  }
}
// The pair of a rank in a lane, of which digits before `pass` are chosen: a block goes through the lane once for each
// digit, and sorts what is left when that is at most `room` pairs.
template <class P, class Pair>
__device__ P pair_of_rank(P* s, unsigned* counts, Found& found, unsigned room, int64_t n, unsigned rank, bool nans,
                          P chosen, unsigned pass, Pair pair) {
  using D = Digit<P>;
  for (;; ++pass) {
    __syncthreads();
    for (unsigned t = threadIdx.x; t < PLACES; t += blockDim.x) counts[t] = 0;
    if (threadIdx.x == 0) found.nans = 0;
    __syncthreads();
    unsigned many = 0;
    through(0, n, pair, [&](const P& p) {
      if (D::fits(p, chosen, pass)) atomicAdd(counts + D::of(p, pass), 1u);
      many += nans && is_nan(p);
    });
    if (nans && many) atomicAdd(&found.nans, many);
    __syncthreads();
    if (nans && found.nans) rank = unsigned(n) - found.nans;
    nans = false;
    choose_digit(counts, found, chosen, rank, pass);
    if (found.many <= room) break;
  }
  __syncthreads();
  if (threadIdx.x == 0) counts[0] = 0;
  __syncthreads();
  through(0, n, pair, [&](const P& p) {
    if (D::fits(p, chosen, pass + 1)) s[atomicAdd(counts, 1u)] = p;
  });
  __syncthreads();
  sort_few(s, counts[0]);
  return s[rank];
}
"""


# Of few long lanes: blocks share the first two digits, then what those leave is gathered.
SHARED = """
// What blocks share of a lane's choice, all zero at first: counts of two digits, of NaN, and of what is gathered.
struct Choice {
  unsigned *counts, *nans, *gathered;
  static int64_t room(int64_t lanes) { return lanes * (2 * PLACES + 2); }
  RK_INLINE static Choice at(unsigned* memory, int64_t lanes, int64_t lane) {
    unsigned* const rest = memory + lanes * 2 * PLACES;
    return Choice{memory + lane * 2 * PLACES, rest + lane, rest + lanes + lane};
  }
};
// The digits before `pass` that hold the rank; returns how many pairs have them.
template <class P>
__device__ unsigned chosen_before(const Choice& choice, Found& found, P& chosen, unsigned& rank, int64_t n,
                                  unsigned pass) {
  if (*choice.nans) rank = unsigned(n) - *choice.nans;
  for (unsigned p = 0; p < pass; ++p) {
    __syncthreads();
    choose_digit(choice.counts + p * PLACES, found, chosen, rank, p);
  }
  return pass ? found.many : unsigned(n);
}
// Counts a digit of the pairs from `begin` to before `end`.
template <class P, class Pair>
__device__ void count_digit(unsigned* counts, Found& found, const Choice& choice, int64_t n, unsigned rank, bool nans,
                            unsigned pass, int64_t begin, int64_t end, Pair pair) {
  P chosen = P();
  for (unsigned t = threadIdx.x; t < PLACES; t += blockDim.x) counts[t] = 0;
  if (pass > 0) chosen_before(choice, found, chosen, rank, n, pass);
  __syncthreads();
  unsigned many = 0;
  through(begin, end, pair, [&](const P& p) {
    if (Digit<P>::fits(p, chosen, pass)) atomicAdd(counts + Digit<P>::of(p, pass), 1u);
    many += nans && is_nan(p);
  });
  if (pass == 0 && many) atomicAdd(choice.nans, many);
  __syncthreads();
  for (unsigned t = threadIdx.x; t < PLACES; t += blockDim.x)
    if (counts[t]) atomicAdd(choice.counts + pass * PLACES + t, counts[t]);
}
// Gathers the pairs with both digits of the rank, or all up to these, unless there are more than `room`.
template <class P, class Pair>
__device__ void gather(Found& found, const Choice& choice, P* to, unsigned room, int64_t n, unsigned rank, bool all,
                       int64_t begin, int64_t end, Pair pair) {
  P chosen = P();
  const unsigned wanted = rank;
  const unsigned many = chosen_before(choice, found, chosen, rank, n, 2) + (all ? wanted - rank : 0);
  if (many > room) return;
  through(begin, end, pair, [&](const P& p) {
    const bool is_wanted = all ? Digit<P>::is_up_to(p, chosen, 1) : Digit<P>::fits(p, chosen, 2);
    if (is_wanted) to[atomicAdd(choice.gathered, 1u)] = p;
  });
}
// Puts the element of a rank, or all up to it in order: of what was gathered, or if that was too much of the lane.
template <class P, class Pair, class Put>
__device__ void finish(P* s, unsigned* counts, Found& found, const Choice& choice, const P* from, unsigned room,
                       int64_t n, unsigned rank, bool all, Pair pair, Put put) {
  P chosen = P();
  const unsigned wanted = rank;
  unsigned have = chosen_before(choice, found, chosen, rank, n, 2);
  const unsigned before = all ? wanted - rank : 0;
  if (have + before > room) {
    const P it = pair_of_rank(s, counts, found, room, n, rank, false, chosen, 2, pair);
    if (!all) {
      if (threadIdx.x == 0) put(0, it);
      return;
    }
    __syncthreads();
    if (threadIdx.x == 0) counts[0] = 0;
    __syncthreads();
    through(0, n, pair, [&](const P& p) {
      if (!(it < p)) s[atomicAdd(counts, 1u)] = p;
    });
    __syncthreads();
    have = counts[0];
  } else {
    have += before;
    for (unsigned t = threadIdx.x; t < have; t += blockDim.x) s[t] = from[t];
  }
  __syncthreads();
  sort_few(s, have);
  if (!all && threadIdx.x == 0) put(0, s[rank]);
  for (unsigned t = threadIdx.x; all && t <= wanted; t += blockDim.x) put(t, s[t]);
}
"""
