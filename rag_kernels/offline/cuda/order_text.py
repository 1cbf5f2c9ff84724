"""The fixed text of sorts in CUDA, in pieces: sorts in registers, digit by digit, the first few, one of a rank.

Comes in: what kernels call. Goes out: the pieces that have it, one namespace. Pairs are a key with its element's place,
of which no two are equal, so that equal elements keep their order however they are moved.
"""

from __future__ import annotations

from collections.abc import Set

from rag_kernels.offline.codegen.order_keys import KEYS

BASE = (
    "#define RK_INLINE __device__ inline\n"
    + KEYS
    + """RK_INLINE uint64_t last(uint64_t) { return ~uint64_t(0); }
RK_INLINE Wide last(Wide) { return Wide{~uint64_t(0), ~0u}; }
RK_INLINE uint32_t key_of(uint64_t p) { return uint32_t(p >> 32); }
RK_INLINE uint64_t key_of(const Wide& p) { return p.key; }
"""
)

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

DIGITS = """
// Long lanes: a block of MOVERS threads for a tile of a lane, a digit of eight bits at a time.
constexpr unsigned MOVERS = 256, DIGITS = MOVERS, WARPS = MOVERS / 32;
template <class P> struct Moved;
template <> struct Moved<uint64_t> { enum { EACH = 16, PASSES = 4 }; };
template <> struct Moved<Wide> { enum { EACH = 8, PASSES = 8 }; };
RK_INLINE unsigned digit(uint64_t p, unsigned pass) { return unsigned(p >> (32 + 8 * pass)) & 255; }
RK_INLINE unsigned digit(const Wide& p, unsigned pass) { return unsigned(p.key >> (8 * pass)) & 255; }
constexpr unsigned COUNTED = 1u << 30, SUMMED = 2u << 30, SO_MANY = COUNTED - 1;  // what a tile has told of a digit
constexpr unsigned IDLE = 1u << 8, LATEST = 1u << 9;  // of a pass, beside how many moved before it

// What the passes share, all zero at first.
struct Board {
  unsigned *tickets, *counts, *turns, *told;
  template <class P> static int64_t room(int64_t lanes, int64_t tiles) {
    return Moved<P>::PASSES * (1 + lanes * (DIGITS + 1 + tiles * DIGITS));
  }
  template <class P> RK_INLINE static Board at(unsigned* memory, int64_t lanes) {
    unsigned* const counts = memory + Moved<P>::PASSES;
    unsigned* const turns = counts + Moved<P>::PASSES * lanes * DIGITS;
    return Board{memory, counts, turns, turns + Moved<P>::PASSES * lanes};
  }
};

// Counts the digits of a tile for all passes.
template <class P, class Key> __device__ void count_digits(int64_t lanes, int64_t n, unsigned* memory, Key key) {
  constexpr unsigned PASSES = Moved<P>::PASSES, TILE = MOVERS * Moved<P>::EACH;
  __shared__ unsigned near[PASSES * DIGITS];
  const int64_t tiles = (n + TILE - 1) / TILE, lane = blockIdx.x / tiles, start = blockIdx.x % tiles * TILE;
  for (unsigned t = threadIdx.x; t < PASSES * DIGITS; t += MOVERS) near[t] = 0;
  __syncthreads();
  for (int64_t j = start + threadIdx.x; j < n && j < start + TILE; j += MOVERS) {
    const P p = placed(key(lane, j), uint32_t(j));
#pragma unroll
    for (unsigned pass = 0; pass < PASSES; ++pass) atomicAdd(near + pass * DIGITS + digit(p, pass), 1u);
  }
  __syncthreads();
  unsigned* const counts = Board::at<P>(memory, lanes).counts + lane * PASSES * DIGITS;
  for (unsigned t = threadIdx.x; t < PASSES * DIGITS; t += MOVERS)
    if (near[t]) atomicAdd(counts + t, near[t]);
}

// The sum of what the threads before this one have.
__device__ inline unsigned sum_before(unsigned* s, unsigned mine) {
  unsigned sum = mine;
  s[threadIdx.x] = mine;
  __syncthreads();
  for (unsigned d = 1; d < MOVERS; d *= 2) {
    const unsigned more = threadIdx.x >= d ? s[threadIdx.x - d] : 0;
    __syncthreads();
    s[threadIdx.x] = sum += more;
    __syncthreads();
  }
  return sum - mine;
}

// Of each pass: where each digit's first element of a lane goes, whether it moves anything, and how many did before it.
template <class P> __device__ void start_digits(int64_t lanes, int64_t n, unsigned* memory) {
  constexpr unsigned PASSES = Moved<P>::PASSES;
  __shared__ unsigned s[MOVERS];
  __shared__ unsigned alike[PASSES];
  const Board board = Board::at<P>(memory, lanes);
  const int64_t lane = blockIdx.x;
  if (threadIdx.x < PASSES) alike[threadIdx.x] = 0;
  __syncthreads();
  for (unsigned pass = 0; pass < PASSES; ++pass) {
    unsigned* const count = board.counts + (lane * PASSES + pass) * DIGITS + threadIdx.x;
    const unsigned mine = *count;
    if (mine == n) alike[pass] = 1;
    *count = sum_before(s, mine);
  }
  __syncthreads();
  if (threadIdx.x > 0) return;
  unsigned latest = PASSES - 1, moved = 0;
  while (latest > 0 && alike[latest]) --latest;
  for (unsigned pass = 0; pass < PASSES; ++pass) {
    const bool idle = pass != latest && alike[pass];
    board.turns[lane * PASSES + pass] = moved | (idle ? IDLE : 0) | (pass == latest ? LATEST : 0);
    moved += !idle;
  }
}

// Moves a tile by one digit, in order; the latest pass puts elements where they are wanted.
template <class P, class Key, class Put>
__device__ void move_tile(P* s, int64_t lanes, int64_t n, int64_t wanted, unsigned pass, unsigned* memory, P* one,
                          P* two, Key key, Put put) {
  constexpr unsigned PASSES = Moved<P>::PASSES, EACH = Moved<P>::EACH, TILE = MOVERS * EACH;
  __shared__ unsigned ranks[WARPS * DIGITS];
  __shared__ unsigned firsts[MOVERS];
  __shared__ unsigned ticket;
  __shared__ int64_t offsets[DIGITS];
  const Board board = Board::at<P>(memory, lanes);
  if (threadIdx.x == 0) ticket = atomicAdd(board.tickets + pass, 1u);  // tiles begin in order
  for (unsigned t = threadIdx.x; t < WARPS * DIGITS; t += MOVERS) ranks[t] = 0;
  __syncthreads();
  const int64_t tiles = (n + TILE - 1) / TILE, lane = ticket / tiles, tile = ticket % tiles;
  const unsigned turn = board.turns[lane * PASSES + pass], moved = turn & 255;
  if (turn & IDLE) return;
  const P* const from = (moved % 2 ? one : two) + lane * n;
  P* const to = (moved % 2 ? two : one) + lane * n;
  const unsigned in_warp = threadIdx.x % 32;
  const int64_t start = tile * TILE + threadIdx.x / 32 * 32 * EACH + in_warp;
  unsigned* const own = ranks + threadIdx.x / 32 * DIGITS;
  P mine[EACH];
  unsigned rank[EACH];
#pragma unroll
  for (unsigned i = 0; i < EACH; ++i) {
    const int64_t j = start + i * 32;
    mine[i] = last(P());  // beyond the end: behind all others
    if (j < n) mine[i] = moved ? from[j] : placed(key(lane, j), uint32_t(j));
  }
#pragma unroll
  for (unsigned i = 0; i < EACH; ++i) {
    const unsigned d = digit(mine[i], pass);
    unsigned same = ~0u;  // threads of the warp with this digit
#pragma unroll
    for (unsigned bit = 0; bit < 8; ++bit) {
      const unsigned set = __ballot_sync(~0u, d >> bit & 1);
      same &= d >> bit & 1 ? set : ~set;
    }
    const unsigned before = __popc(same & ((1u << in_warp) - 1)), have = own[d];
    __syncwarp();
    if (before == 0) own[d] = have + __popc(same);
    __syncwarp();
    rank[i] = have + before;
  }
  __syncthreads();
  unsigned count = 0;  // of the digit that is this thread's number, in the tile
  for (unsigned part = 0; part < WARPS; ++part) {
    const unsigned more = ranks[part * DIGITS + threadIdx.x];
    ranks[part * DIGITS + threadIdx.x] = count;
    count += more;
  }
  volatile unsigned* const told = board.told + (pass * lanes + lane) * tiles * DIGITS + threadIdx.x;
  unsigned earlier = 0;  // in the tiles before this one
  if (tile > 0) {
    told[tile * DIGITS] = COUNTED | count;
    for (int64_t other = tile - 1;;) {
      const unsigned found = told[other * DIGITS];
      if (found == 0) continue;
      earlier += found & SO_MANY;
      if (found & SUMMED) break;
      --other;
    }
  }
  told[tile * DIGITS] = SUMMED | (earlier + count);
  const unsigned first = sum_before(firsts, count);
  const unsigned starts = board.counts[(lane * PASSES + pass) * DIGITS + threadIdx.x];
  offsets[threadIdx.x] = int64_t(starts) + earlier - first;
  __syncthreads();
  firsts[threadIdx.x] = first;
  __syncthreads();
#pragma unroll
  for (unsigned i = 0; i < EACH; ++i) {
    const unsigned d = digit(mine[i], pass);
    s[firsts[d] + own[d] + rank[i]] = mine[i];
  }
  __syncthreads();
  const int64_t left = n - tile * TILE, here = left < TILE ? left : TILE;
  for (unsigned t = threadIdx.x; t < here; t += MOVERS) {
    const P p = s[t];
    const int64_t at = offsets[digit(p, pass)] + t;
    if (!(turn & LATEST)) to[at] = p;
    else if (at < wanted) put(lane, at, place_of(p));
  }
}
"""

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

CALLERS = (  # of each piece
    (REGISTERS, ("sort_lanes",)),
    (DIGITS, ("move_tile",)),
    (RUNS, ("first_of", "pair_of_rank", "finish")),
    (FIRST, ("first_of",)),
    (PICK, ("pick",)),
    (RANKS, ("pair_of_rank", "finish")),
    (SHARED, ("finish",)),
)


def order_head(called: Set[str]) -> str:
    """Return the fixed text of sorts of which these functions are called."""
    used = [text for text, callers in CALLERS if called & set(callers)]
    return BASE + "".join(used) + "}  // namespace order\n" if called else ""
