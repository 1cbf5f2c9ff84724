"""Sorts in CUDA: keys with their places, sorted in shared memory, in chunks that are merged where a lane is longer.

Comes in: an OrderRegion of a Function. Goes out: its kernels and their launches. A block sorts several short lanes,
one lane, or a chunk of a long one; chunks are merged two by two, tiles of a result at a time. Where few are wanted of a
long lane, a block goes through it once and keeps what may be among them.
"""

from __future__ import annotations

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
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
constexpr unsigned TILE = 1024, MERGERS = 256;  // elements and threads of a merge

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

// Short lanes, `across` of them a block, or chunks of long ones, which go to `runs`.
template <class P, class Key, class Put>
__device__ void sort_block(P* s, int64_t lanes, int64_t n, int64_t wanted, unsigned width, unsigned across, P* runs,
                           Key key, Put put) {
  const int64_t chunks = (n + width - 1) / width, first = int64_t(blockIdx.x) * across;
  for (unsigned t = threadIdx.x; t < across * width; t += blockDim.x) {
    const int64_t piece = first + t / width, lane = piece / chunks, j = piece % chunks * width + t % width;
    s[t] = last(P());
    if (lane < lanes && j < n) s[t] = placed(key(lane, j), uint32_t(j));
  }
  sort_runs(s, across * width, width);
  for (unsigned t = threadIdx.x; t < across * width; t += blockDim.x) {
    const int64_t piece = first + t / width, lane = piece / chunks, j = piece % chunks * width + t % width;
    if (lane >= lanes || j >= n) continue;
    if (runs) runs[lane * n + j] = s[t];
    else if (j < wanted) put(lane, j, place_of(s[t]));
  }
}

// How many of the first `d` elements of two sorted runs together are of the first run.
template <class P> __device__ int64_t split(const P* a, int64_t in_a, const P* b, int64_t in_b, int64_t d) {
  int64_t low = d > in_b ? d - in_b : 0, high = d < in_a ? d : in_a;
  while (low < high) {
    const int64_t middle = (low + high) / 2;
    if (a[middle] < b[d - 1 - middle]) low = middle + 1;
    else high = middle;
  }
  return low;
}

// A tile of what two neighbouring runs of `width` elements come to together.
template <class P> __device__ void merge_tile(P* s, const P* from, P* to, int64_t n, int64_t width) {
  const int64_t tiles = (n + TILE - 1) / TILE, lane = blockIdx.x / tiles, start = blockIdx.x % tiles * TILE;
  const int64_t pair = start / (2 * width) * (2 * width), middle = pair + width < n ? pair + width : n;
  const int64_t stop = pair + 2 * width < n ? pair + 2 * width : n;
  const P *const a = from + lane * n + pair, *const b = from + lane * n + middle;
  const int64_t in_a = middle - pair, in_b = stop - middle, d = start - pair;
  const int64_t e = d + TILE < in_a + in_b ? d + TILE : in_a + in_b;
  const int64_t a0 = split(a, in_a, b, in_b, d), a1 = split(a, in_a, b, in_b, e);
  const unsigned own_a = unsigned(a1 - a0), own = unsigned(e - d);
  for (unsigned t = threadIdx.x; t < own; t += blockDim.x)
    s[t] = t < own_a ? a[a0 + t] : b[d - a0 + (t - own_a)];
  __syncthreads();
  constexpr unsigned EACH = TILE / MERGERS;
  const unsigned k = threadIdx.x * EACH;
  P mine[EACH];
  if (k < own) {
    unsigned i = unsigned(split(s, int64_t(own_a), s + own_a, int64_t(own - own_a), int64_t(k))), j = own_a + (k - i);
#pragma unroll
    for (unsigned u = 0; u < EACH; ++u)
      if (k + u < own) mine[u] = j >= own || (i < own_a && s[i] < s[j]) ? s[i++] : s[j++];
  }
  __syncthreads();
#pragma unroll
  for (unsigned u = 0; u < EACH; ++u)
    if (k + u < own) s[k + u] = mine[u];
  __syncthreads();
  for (unsigned t = threadIdx.x; t < own; t += blockDim.x) to[lane * n + start + t] = s[t];
}

// The first `wanted` elements of a long lane, which a block goes through once; `room` is a power of two.
template <class P, class Key, class Put>
__device__ void first_of(P* s, unsigned& count, unsigned room, int64_t n, unsigned wanted, Key key, Put put) {
  P most = last(P());
  if (threadIdx.x == 0) count = 0;
  __syncthreads();
  const unsigned stretch = 2 * blockDim.x;
  for (int64_t start = 0; start < n; start += stretch) {
#pragma unroll
    for (unsigned u = 0; u < 2; ++u) {
      const int64_t j = start + u * blockDim.x + threadIdx.x;
      if (j >= n) continue;
      const P mine = placed(key(j), uint32_t(j));
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
  for (unsigned t = threadIdx.x; t < wanted; t += blockDim.x) put(int64_t(t), place_of(s[t]));
}
}  // namespace order
"""
)
CHUNK_BYTES = 32 << 10  # of shared memory: what a block sorts at once


def order_text(
    name: str, region: OrderRegion, function: Function, sizes: Sizes, parameters: CudaParameters
) -> tuple[list[str], list[str]]:
    """Return the kernels of a sort, and the statements that launch them."""
    ordered, names = region.ordered, sizes.names
    lanes = [leaf for group in ordered.dims if group != ordered.over for leaf in ir.leaves(group)]
    over, taken = ir.leaves(ordered.over), ir.leaves(ordered.taken)
    nest = nest_of(region, [*lanes, *over, *(leaf for leaf in taken if leaf not in over)], names)
    printer = Printer(nest, {b: f"{c_name(b)}_p" for b in function.specs}, function.storage(), function.near)
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
        f"unsigned across, {of}* runs) {{",
        f"  __shared__ {of} s[{most}];",
        *indent([*body, *key]),
        "  order::sort_block(s, lanes_, n_, wanted_, width, across, runs, key, put);",
        "}",
        f"__global__ void {name}_merge(const {of}* from, {of}* to, int64_t n, int64_t width) {{",
        f"  __shared__ {of} s[order::TILE];",
        "  order::merge_tile(s, from, to, n, width);",
        "}",
        f"__global__ void {name}_put({known}, int64_t lanes_, int64_t n_, int64_t wanted_, const {of}* runs) {{",
        *indent(body),
        "  const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x, lane = t / wanted_, j = t % wanted_;",
        "  if (t < lanes_ * wanted_) put(lane, j, order::place_of(runs[lane * n_ + j]));",
        "}",
        f"__global__ void {name}_first({known}, int64_t n_, unsigned wanted_) {{",
        f"  __shared__ {of} s[{most}];",
        "  __shared__ unsigned count;",
        *indent([*body, *key]),
        "  const int64_t lane = blockIdx.x;",
        f"  order::first_of(s, count, {most}, n_, wanted_, [&](int64_t j) {{ return key(lane, j); }},",
        "                  [&](int64_t j, int64_t from) { put(lane, j, from); });",
        "}",
    ]
    launch = [
        f"const int64_t lanes = {names.product(tuple(lanes))}, n = {names.product(ordered.over)};",
        f"const int64_t wanted = {names.product(ordered.taken)};",
        'RK_CHECK(n < (int64_t(1) << 31), "this kernel sorts fewer than 2^31 elements of a lane");',
        'RK_CHECK(wanted <= n, "this kernel is asked for more elements than a lane has");',
        f"if (lanes > 0 && wanted > 0 && n > {most} && wanted <= {most // 4}) {{",
        f"  {name}_first<<<blocks(lanes), 512, 0, stream>>>({given}, n, unsigned(wanted));",
        "} else if (lanes > 0 && wanted > 0) {",
        "  unsigned width = 2;",
        f"  while (width < n && width < {most}) width *= 2;",
        "  const unsigned across = width < 512 ? 512 / width : 1, threads = width * across > 1024 ? 512 : 256;",
        "  const int64_t pieces = lanes * ((n + width - 1) / width);",
        f"  {of}* runs = n > width ? scratch<{of}>(lanes * n, stream) : nullptr;",
        f"  {of}* other = n > width ? scratch<{of}>(lanes * n, stream) : nullptr;",
        f"  {name}<<<blocks((pieces + across - 1) / across), threads, 0, stream>>>({given}, lanes, n, wanted, width, "
        "across, runs);",
        "  if (runs) {",
        "    const int64_t tiles = lanes * ((n + order::TILE - 1) / order::TILE);",
        "    for (int64_t sorted = width; sorted < n; sorted *= 2) {",
        f"      {name}_merge<<<blocks(tiles), 256, 0, stream>>>(runs, other, n, sorted);",
        f"      {of}* const merged = other;",
        "      other = runs, runs = merged;",
        "    }",
        f"    {name}_put<<<blocks((lanes * wanted + 255) / 256), 256, 0, stream>>>({given}, lanes, n, wanted, runs);",
        "    cudaFreeAsync(runs, stream);",
        "    cudaFreeAsync(other, stream);",
        "  }",
        "}",
    ]
    return text, ["{", *indent(launch), "}"]
