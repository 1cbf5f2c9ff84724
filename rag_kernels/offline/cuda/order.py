"""Sorts in CUDA: keys with their places, in shared memory where a lane fits into it, else digit by digit.

Comes in: an OrderRegion of a Function. Goes out: its kernels and their launches. A block sorts several short lanes or
one. Long lanes are moved once for each byte of their keys, from the lowest on: all digits are counted first, then tiles
find where each digit of theirs goes by looking back at the tiles before them; a byte that all keys share moves nothing.
Where few are wanted of a long lane, a block goes through it once and keeps what may be among them; of few lanes many
blocks go through a part each, and one block a lane through what they kept.
"""

from __future__ import annotations

from collections.abc import Sequence

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.operator_texts import on_gpu
from rag_kernels.offline.codegen.order_keys import KEYS, pair_of
from rag_kernels.offline.codegen.own_text import apart, nest_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import OrderRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.parameters import c_name

HEAD = (
    "#define RK_INLINE __device__ inline\n"
    + KEYS
    + """RK_INLINE uint64_t last(uint64_t) { return ~uint64_t(0); }
RK_INLINE Wide last(Wide) { return Wide{~uint64_t(0), ~0u}; }
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

// Short lanes, `across` of them a block.
template <class P, class Key, class Put>
__device__ void sort_block(P* s, int64_t lanes, int64_t n, int64_t wanted, unsigned width, unsigned across, Key key,
                           Put put) {
  const int64_t first = int64_t(blockIdx.x) * across;
  for (unsigned t = threadIdx.x; t < across * width; t += blockDim.x) {
    const int64_t lane = first + t / width, j = t % width;
    s[t] = last(P());
    if (lane < lanes && j < n) s[t] = placed(key(lane, j), uint32_t(j));
  }
  sort_runs(s, across * width, width);
  for (unsigned t = threadIdx.x; t < across * width; t += blockDim.x) {
    const int64_t lane = first + t / width, j = t % width;
    if (lane < lanes && j < wanted) put(lane, j, place_of(s[t]));
  }
}

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

// The first `wanted` of `n` pairs, through which a block goes once; `room` is a power of two.
template <class P, class Pair, class Put>
__device__ void first_of(P* s, unsigned& count, unsigned room, int64_t n, unsigned wanted, Pair pair, Put put) {
  P most = last(P());
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  const unsigned stretch = 2 * blockDim.x;
  for (int64_t start = 0; start < n; start += stretch) {
#pragma unroll
    for (unsigned u = 0; u < 2; ++u) {
      const int64_t j = start + u * blockDim.x + threadIdx.x;
      if (j >= n) continue;
      const P mine = pair(j);
      if (mine < most) s[atomicAdd(&count, 1u)] = mine;
    }
    __syncthreads();
    const unsigned have = count;
    if (have + stretch > room || start + stretch >= n) {
      unsigned size = 2;
      while (size < have) size *= 2;
      for (unsigned t = have + threadIdx.x; t < size; t += blockDim.x) s[t] = last(P());
      sort_runs(s, size, size);
      if (have >= wanted) most = s[wanted - 1];
      if (threadIdx.x == 0) count = have < wanted ? have : wanted;
    }
    __syncthreads();
  }
  for (unsigned t = threadIdx.x; t < wanted; t += blockDim.x) put(int64_t(t), s[t]);
}
}  // namespace order
"""
)
MOVERS = 256  # threads of a tile of a long lane, one for each digit, as in the text
BLOCKS, LEAST_PART = 264, 8192  # that fill a GPU; elements of a lane that are worth a block, many more than are wanted
CHUNK_BYTES = 32 << 10  # of shared memory: what a block sorts at once


def order_text(
    name: str, region: OrderRegion, function: Function, sizes: Sizes, parameters: CudaParameters
) -> tuple[list[str], list[str]]:
    """Return the kernels of a sort, and the statements that launch them."""
    ordered, names = region.ordered, sizes.names
    lanes = [leaf for group in ordered.dims if group != ordered.over for leaf in ir.leaves(group)]
    over, taken = ir.leaves(ordered.over), ir.leaves(ordered.taken)
    nest = nest_of(region, [*lanes, *over, *(leaf for leaf in taken if leaf not in over)], names)
    printer = Printer(nest, function.pointers, function.storage, on_gpu(near=function.near))
    scratch = tuple(c_name(b) for b in function.scratch)
    kernel = CudaRegion(nest, printer, {}, parameters=parameters, constants=sizes.constants, scratch=scratch)
    scope = Scope()
    element = printer.emit(ordered.value, scope)
    ctype, pair = CTYPES[ordered.value.dtype], pair_of(ordered.value.dtype)
    elements, places = (printer.pointers[b] for b in (ordered.elements, ordered.places))
    value = [
        f"const auto element = [&](int64_t lane, int64_t j) -> {ctype} {{",
        *indent([*apart(nest, "lane", lanes), *apart(nest, "j", over), *scope.lines, f"return {element};"]),
        "};",
    ]
    put = [
        "const auto put = [&](int64_t lane, int64_t j, int64_t from) {",
        *indent([*apart(nest, "lane", lanes), *apart(nest, "j", taken)]),
        f"  const int64_t at = {nest.offset(nest.stores[ordered.places]) or '0'};",
        f"  {elements}[at] = element(lane, from);",
        f"  {places}[at] = from;",
        "};",
    ]
    down = str(ordered.descending).lower()
    key = [f"const auto key = [&](int64_t lane, int64_t j) {{ return order::key<{down}>(element(lane, j)); }};"]
    body = [*value, *put]
    declared, arguments = kernel.parameters_of(body, function)
    body = [*(f"constexpr int64_t {n} = {v};" for n, v in kernel.constants_in(body)), *body]
    known, given = (", ".join(texts) for texts in (declared, arguments))
    most = CHUNK_BYTES // (8 if pair == "uint64_t" else 16)
    of = f"{name}_pair"
    text = [
        f"// {ordered.elements}: {names.product(tuple(lanes))} lanes of {names.product(ordered.over)} in order",
        f"using {of} = {pair};",
        f"__global__ void {name}({known}, int64_t lanes_, int64_t n_, int64_t wanted_, unsigned width, "
        "unsigned across) {",
        f"  __shared__ {of} s[{most}];",
        *indent([*body, *key]),
        "  order::sort_block(s, lanes_, n_, wanted_, width, across, key, put);",
        "}",
        f"__global__ void {name}_count({known}, int64_t lanes_, int64_t n_, unsigned* board_) {{",
        *indent([*body, *key]),
        f"  order::count_digits<{of}>(lanes_, n_, board_, key);",
        "}",
        f"__global__ void {name}_start(int64_t lanes, int64_t n, unsigned* board) {{",
        f"  order::start_digits<{of}>(lanes, n, board);",
        "}",
        f"__global__ void __launch_bounds__(order::MOVERS) {name}_move({known}, int64_t lanes_, int64_t n_, "
        f"int64_t wanted_, unsigned pass, unsigned* board_, {of}* one_, {of}* two_) {{",
        f"  __shared__ {of} s[{most}];",
        *indent([*body, *key]),
        "  order::move_tile(s, lanes_, n_, wanted_, pass, board_, one_, two_, key, put);",
        "}",
        f"__global__ void {name}_first({known}, int64_t n_, unsigned wanted_) {{",
        f"  __shared__ {of} s[{most}];",
        "  __shared__ unsigned count;",
        *indent([*body, *key]),
        "  const int64_t lane = blockIdx.x;",
        f"  order::first_of(s, count, {most}, n_, wanted_,",
        "                  [&](int64_t j) { return order::placed(key(lane, j), uint32_t(j)); },",
        f"                  [&](int64_t j, const {of}& found) {{ put(lane, j, order::place_of(found)); }});",
        "}",
        f"__global__ void {name}_part({known}, int64_t n_, unsigned wanted_, int64_t parts_, {of}* kept_) {{",
        f"  __shared__ {of} s[{most}];",
        "  __shared__ unsigned count;",
        *indent([*body, *key]),
        "  const int64_t lane = blockIdx.x / parts_, step = (n_ + parts_ - 1) / parts_;",
        "  const int64_t begin = blockIdx.x % parts_ * step, end = begin + step < n_ ? begin + step : n_;",
        f"  {of}* const to = kept_ + blockIdx.x * int64_t(wanted_);",
        f"  order::first_of(s, count, {most}, end - begin, wanted_,",
        "                  [&](int64_t j) { return order::placed(key(lane, begin + j), uint32_t(begin + j)); },",
        f"                  [&](int64_t j, const {of}& found) {{ to[j] = found; }});",
        "}",
        f"__global__ void {name}_join({known}, int64_t n_, unsigned wanted_, const {of}* kept_) {{",
        f"  __shared__ {of} s[{most}];",
        "  __shared__ unsigned count;",
        *indent(body),
        "  const int64_t lane = blockIdx.x;",
        f"  order::first_of(s, count, {most}, n_, wanted_, [&](int64_t j) {{ return kept_[lane * n_ + j]; }},",
        f"                  [&](int64_t j, const {of}& found) {{ put(lane, j, order::place_of(found)); }});",
        "}",
    ]
    counts = [names.product(group) for group in (tuple(lanes), ordered.over, ordered.taken)]
    return text, ["{", *indent(_launch(name, counts, given, most)), "}"]


def _launch(name: str, counts: Sequence[str], given: str, most: int) -> list[str]:
    """Return the statements that launch: a choice for few wanted elements, one block a lane, or digit by digit.

    `counts` are the numbers of lanes, of elements of one and of those wanted, as C; `most` pairs fit a block.
    """
    lanes, elements, wanted = counts
    of = f"{name}_pair"
    return [
        f"const int64_t lanes = {lanes}, n = {elements};",
        f"const int64_t wanted = {wanted};",
        'RK_CHECK(n < (int64_t(1) << 30), "this kernel sorts fewer than 2^30 elements of a lane");',
        'RK_CHECK(wanted <= n, "this kernel is asked for more elements than a lane has");',
        f"if (lanes > 0 && wanted > 0 && n > {most} && wanted <= {most // 4}) {{",
        f"  const int64_t fill = ({BLOCKS} + lanes - 1) / lanes, most = n / {LEAST_PART};",
        "  const int64_t parts = fill < most ? fill : most;",
        "  if (parts > 1) {",
        f"    {of}* kept = scratch<{of}>(lanes * parts * wanted, stream);",
        f"    {name}_part<<<blocks(lanes * parts), 512, 0, stream>>>({given}, n, unsigned(wanted), parts, kept);",
        f"    {name}_join<<<blocks(lanes), 512, 0, stream>>>({given}, parts * wanted, unsigned(wanted), kept);",
        "    cudaFreeAsync(kept, stream);",
        "  } else {",
        f"    {name}_first<<<blocks(lanes), 512, 0, stream>>>({given}, n, unsigned(wanted));",
        "  }",
        f"}} else if (lanes > 0 && wanted > 0 && n <= {most}) {{",
        "  unsigned width = 2;",
        "  while (width < n) width *= 2;",
        "  const unsigned across = width < 512 ? 512 / width : 1, threads = width * across > 1024 ? 512 : 256;",
        f"  {name}<<<blocks((lanes + across - 1) / across), threads, 0, stream>>>({given}, lanes, n, wanted, width, "
        "across);",
        "} else if (lanes > 0 && wanted > 0) {",
        f"  const int64_t tiles = (n + {most - 1}) / {most}, room = order::Board::room<{of}>(lanes, tiles);",
        f"  {of}* one = scratch<{of}>(lanes * n, stream);",
        f"  {of}* two = scratch<{of}>(lanes * n, stream);",
        "  unsigned* board = scratch<unsigned>(room, stream);",
        "  cudaMemsetAsync(board, 0, room * sizeof(unsigned), stream);",
        f"  {name}_count<<<blocks(lanes * tiles), {MOVERS}, 0, stream>>>({given}, lanes, n, board);",
        f"  {name}_start<<<blocks(lanes), {MOVERS}, 0, stream>>>(lanes, n, board);",
        f"  for (unsigned pass = 0; pass < unsigned(order::Moved<{of}>::PASSES); ++pass)",
        f"    {name}_move<<<blocks(lanes * tiles), {MOVERS}, 0, stream>>>({given}, lanes, n, wanted, pass, board, "
        "one, two);",
        "  cudaFreeAsync(one, stream);",
        "  cudaFreeAsync(two, stream);",
        "  cudaFreeAsync(board, stream);",
        "}",
    ]
