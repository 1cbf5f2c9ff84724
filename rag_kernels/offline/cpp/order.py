"""Sorts in C++: keys that order as their elements do, with the index of each, in a radix sort of each lane.

Comes in: an OrderRegion. Goes out: its statements. NaN is the greatest key and -0 is 0, as in PyTorch; equal keys keep
their order. Where few are wanted of many, what cannot be among them is dropped first. One long lane is sorted in parts
by all threads, which are merged.
"""

from __future__ import annotations

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.loop_nest import Names
from rag_kernels.offline.codegen.order_keys import KEYS, pair_of
from rag_kernels.offline.codegen.own_text import apart, nest_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.fusion.regions import OrderRegion
from rag_kernels.offline.ir import values as ir

HEAD = (
    "#include <cstring>\n#include <omp.h>\n\n#define RK_INLINE inline\n"
    + KEYS
    + """inline uint32_t key_of(uint64_t p) { return uint32_t(p >> 32); }
inline uint64_t key_of(const Wide& p) { return p.key; }

// Sorts `n` elements that stand in the order of their places; `other` has as much room.
template <class P> void sort(P* at, P* other, int64_t n) {
  constexpr int BITS = sizeof(P) == 8 ? 32 : 64;
  if (n <= 96) {
    for (int64_t i = 1; i < n; ++i) {
      const P mine = at[i];
      int64_t j = i;
      for (; j > 0 && mine < at[j - 1]; --j) at[j] = at[j - 1];
      at[j] = mine;
    }
    return;
  }
  if (n < 768) return std::sort(at, at + n);
  constexpr int DIGIT = 8, PASSES = BITS / DIGIT, MANY = 1 << DIGIT;
  std::unique_ptr<uint32_t[]> counts(new uint32_t[PASSES * MANY]());
  for (int64_t i = 0; i < n; ++i)
    for (int p = 0; p < PASSES; ++p) ++counts[p * MANY + (key_of(at[i]) >> (p * DIGIT) & (MANY - 1))];
  P *from = at, *to = other;
  for (int p = 0; p < PASSES; ++p) {
    uint32_t* const count = counts.get() + p * MANY;
    if (count[key_of(from[0]) >> (p * DIGIT) & (MANY - 1)] == n) continue;  // all have this digit
    uint32_t sum = 0;
    for (int d = 0; d < MANY; ++d) {
      const uint32_t mine = count[d];
      count[d] = sum;
      sum += mine;
    }
    for (int64_t i = 0; i < n; ++i) to[count[key_of(from[i]) >> (p * DIGIT) & (MANY - 1)]++] = from[i];
    std::swap(from, to);
  }
  if (from != at) std::copy(from, from + n, at);
}

// The `wanted` first elements of `n`, in order, at the front of `kept`, which has room for `n`. Keys are computed
// ahead, some at once; where none of them is less than what is kept they are passed over.
template <class P, class Key> void first_of(int64_t n, int64_t wanted, P* kept, P* other, Key key) {
  using K = decltype(key(0));
  constexpr int64_t STEP = 64, FEW = 16;
  const int64_t room = std::max<int64_t>(4 * wanted, 4 * STEP);
  int64_t count = 0;
  const auto enter = [&](const P mine) {  // goes where it belongs among the first so far
    int64_t j = count < wanted ? count++ : wanted - 1;
    for (; j > 0 && mine < kept[j - 1]; --j) kept[j] = kept[j - 1];
    kept[j] = mine;
  };
  if (4 * wanted > n || n <= (wanted > FEW ? room : 32)) {
    for (int64_t i = 0; i < n; ++i) kept[i] = placed(key(i), uint32_t(i));
    if (2 * wanted > n) return sort(kept, other, n);
    if (wanted <= FEW) {
      for (int64_t i = 0; i < n; ++i)
        if (count < wanted || kept[i] < kept[wanted - 1]) enter(kept[i]);
      return;
    }
    std::nth_element(kept, kept + wanted - 1, kept + n);
    return std::sort(kept, kept + wanted);
  }
  K keys[STEP], most = ~K(0);
  const auto shrink = [&] {
    std::nth_element(kept, kept + wanted - 1, kept + count);
    count = wanted;
    most = K(key_of(kept[wanted - 1]));
  };
  for (int64_t start = 0; start < n; start += STEP) {  // an equal key that comes later stands behind
    const int64_t here = std::min(STEP, n - start);
    K least = ~K(0);
#pragma omp simd
    for (int64_t i = 0; i < here; ++i) keys[i] = key(start + i);
    for (int64_t i = 0; i < here; ++i) least = keys[i] < least ? keys[i] : least;
    if (count >= wanted && !(least < most)) continue;
    if (wanted > FEW) {
      for (int64_t i = 0; i < here; ++i) {
        kept[count] = placed(keys[i], uint32_t(start + i));
        count += keys[i] < most || count < wanted;
      }
      if (count + STEP > room) shrink();
      continue;
    }
    for (int64_t i = 0; i < here; ++i) {
      if (count == wanted && !(keys[i] < most)) continue;
      enter(placed(keys[i], uint32_t(start + i)));
      if (count == wanted) most = K(key_of(kept[wanted - 1]));
    }
  }
  if (wanted <= FEW) return;
  if (count > wanted) shrink();
  std::sort(kept, kept + wanted);
}

// All elements of one lane, in parts, by all threads.
template <class P, class Key> void sort_at_once(int64_t n, P* at, P* other, Key key) {
  const int64_t parts = omp_get_max_threads();
  const auto begin = [&](int64_t part) { return n * std::min(part, parts) / parts; };
#pragma omp parallel for schedule(static, 1)
  for (int64_t part = 0; part < parts; ++part) {
    for (int64_t i = begin(part); i < begin(part + 1); ++i) at[i] = placed(key(i), uint32_t(i));
    sort(at + begin(part), other + begin(part), begin(part + 1) - begin(part));
  }
  P *from = at, *to = other;
  for (int64_t width = 1; width < parts; width *= 2) {
#pragma omp parallel for schedule(static, 1)
    for (int64_t part = 0; part < parts; part += 2 * width)
      std::merge(from + begin(part), from + begin(part + width), from + begin(part + width),
                 from + begin(part + 2 * width), to + begin(part));
    std::swap(from, to);
  }
  if (from != at) std::copy(from, from + n, at);
}

template <class P, class Key, class Put>
void run(int64_t lanes, int64_t n, int64_t wanted, Key key, Put put) {
  RK_CHECK(n < (int64_t(1) << 32), "this kernel sorts fewer than 2^32 elements of a lane");
  RK_CHECK(wanted <= n, "this kernel is asked for more elements than a lane has");
  if (lanes < 1 || wanted < 1) return;
  if (lanes < omp_get_max_threads() && n >= 32768 && 4 * wanted > n) {
    std::unique_ptr<P[]> at(new P[n]), other(new P[n]);
    for (int64_t lane = 0; lane < lanes; ++lane) {
      sort_at_once(n, at.get(), other.get(), [&](int64_t i) { return key(lane, i); });
#pragma omp parallel for
      for (int64_t i = 0; i < wanted; ++i) put(lane, i, place_of(at[i]));
    }
    return;
  }
#pragma omp parallel if (lanes * n >= 4096)
  {
    std::unique_ptr<P[]> at(new P[n]), other(new P[n]);
#pragma omp for schedule(static)
    for (int64_t lane = 0; lane < lanes; ++lane) {
      first_of(n, wanted, at.get(), other.get(), [&](int64_t i) { return key(lane, i); });
      for (int64_t i = 0; i < wanted; ++i) put(lane, i, place_of(at[i]));
    }
  }
}

// The elements of `count` ranks of each lane; with `nans` the first NaN of a lane that has any.
template <class P, class Key, class Put>
void pick(int64_t lanes, int64_t n, const int64_t* ranks, int64_t count, bool nans, Key key, Put put) {
  RK_CHECK(n < (int64_t(1) << 32), "this kernel orders fewer than 2^32 elements of a lane");
  for (int64_t r = 0; r < count; ++r)
    RK_CHECK(ranks[r] >= 0 && ranks[r] < n, "this kernel is asked for an element beyond a lane");
#pragma omp parallel if (lanes * n >= 4096)
  {
    std::unique_ptr<P[]> at(new P[n]);
#pragma omp for schedule(static)
    for (int64_t lane = 0; lane < lanes; ++lane) {
      for (int64_t i = 0; i < n; ++i) at[i] = placed(key(lane, i), uint32_t(i));
      int64_t many = 0, from = 0;
      for (int64_t i = 0; nans && i < n; ++i) many += !(key_of(at[i]) + 1);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t rank = many ? n - many : ranks[r];
        const int64_t begin = rank < from ? 0 : from;  // of what is behind the rank before
        std::nth_element(at.get() + begin, at.get() + rank, at.get() + n);
        from = rank;
        put(lane, r, place_of(at[rank]));
      }
    }
  }
}
}  // namespace order
"""
)


def region_text(region: OrderRegion, names: Names, pointers: dict[str, str], storage: dict[str, str]) -> list[str]:
    """Return the statements of a sort."""
    ordered = region.ordered
    lanes = [leaf for group in ordered.dims if group != ordered.over for leaf in ir.leaves(group)]
    over, taken = ir.leaves(ordered.over), ir.leaves(ordered.taken)
    nest = nest_of(region, [*lanes, *over, *(leaf for leaf in taken if leaf not in over)], names)
    printer = Printer(nest, pointers, storage)
    scope = Scope()
    element = printer.emit(ordered.value, scope)
    ctype = CTYPES[ordered.value.dtype]
    down = str(ordered.descending).lower()
    offset = nest.offset(next(iter(nest.stores.values()))) or "0"
    put = {ordered.elements: "element(lane, from)", ordered.places: "from"}
    pair, size = pair_of(ordered.value.dtype), names.product(ordered.over)
    ranks = Scope()
    wanted = [printer.emit(rank, ranks) for rank in ordered.ranks]
    if ordered.ranks:
        nans = str(ordered.nans).lower()
        sorts = [
            *ranks.lines,
            f"const int64_t ranks[] = {{{', '.join(wanted)}}};",
            f"order::pick<{pair}>({names.product(tuple(lanes))}, {size}, ranks, {len(wanted)}, {nans}, key, put);",
        ]
    else:
        kept = names.product(ordered.taken)
        sorts = [f"order::run<{pair}>({names.product(tuple(lanes))}, {size}, {kept}, key, put);"]
    return [
        f"// {ordered.elements}: {names.product(tuple(lanes))} lanes of {names.product(ordered.over)} in order",
        "{",
        f"  const auto element = [&](int64_t lane, int64_t j) -> {ctype} {{",
        *indent(indent([*apart(nest, "lane", lanes), *apart(nest, "j", over), *scope.lines, f"return {element};"])),
        "  };",
        f"  const auto key = [&](int64_t lane, int64_t j) {{ return order::key<{down}>(element(lane, j)); }};",
        "  const auto put = [&](int64_t lane, int64_t j, int64_t from) {",
        *indent(indent([*apart(nest, "lane", lanes), *apart(nest, "j", taken)])),
        f"    const int64_t at = {offset};",
        *(f"    {pointers[b]}[at] = {put[b]};" for b in region.stores),
        "  };",
        *indent(sorts),
        "}",
    ]
