"""The fixed text of sorts of long lanes in CUDA: digit by digit, each tile's places after those of the tiles before it.

Goes out: a piece of the namespace that `order.py` begins and ends.
"""

from __future__ import annotations

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
