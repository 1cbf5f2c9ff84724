"""Keys of a sort: unsigned numbers that order as elements do, and pairs of a key with its element's place.

Text of both languages, in which `RK_INLINE` stands for how each declares a small function.
"""

from __future__ import annotations

KEYS = """// Keys that order as elements do: NaN above all, -0 as 0; with `DOWN` the other way round.
namespace order {
template <bool DOWN, class K> RK_INLINE K turned(K k) { return DOWN ? K(~k) : k; }
template <bool DOWN> RK_INLINE uint32_t key(float x) {
  uint32_t u;
  x += 0.0f;
  memcpy(&u, &x, 4);
  return turned<DOWN>(x != x ? ~0u : u ^ (uint32_t(int32_t(u) >> 31) | 0x80000000u));
}
template <bool DOWN> RK_INLINE uint64_t key(double x) {
  uint64_t u;
  x += 0.0;
  memcpy(&u, &x, 8);
  return turned<DOWN>(x != x ? ~uint64_t(0) : u ^ (uint64_t(int64_t(u) >> 63) | uint64_t(1) << 63));
}
template <bool DOWN> RK_INLINE uint64_t key(int64_t x) { return turned<DOWN>(uint64_t(x) ^ uint64_t(1) << 63); }
template <bool DOWN> RK_INLINE uint32_t key(int32_t x) { return turned<DOWN>(uint32_t(x) ^ 0x80000000u); }
template <bool DOWN> RK_INLINE uint32_t key(int16_t x) { return key<DOWN>(int32_t(x)); }
template <bool DOWN> RK_INLINE uint32_t key(int8_t x) { return key<DOWN>(int32_t(x)); }
template <bool DOWN> RK_INLINE uint32_t key(uint8_t x) { return key<DOWN>(int32_t(x)); }
template <bool DOWN> RK_INLINE uint32_t key(bool x) { return key<DOWN>(int32_t(x)); }

// A key with where its element stood: no two are equal.
struct Wide {
  uint64_t key;
  uint32_t place;
  RK_INLINE bool operator<(const Wide& other) const {
    return key < other.key || (key == other.key && place < other.place);
  }
};
RK_INLINE uint64_t placed(uint32_t key, uint32_t place) { return uint64_t(key) << 32 | place; }
RK_INLINE Wide placed(uint64_t key, uint32_t place) { return Wide{key, place}; }
RK_INLINE uint32_t place_of(uint64_t p) { return uint32_t(p); }
RK_INLINE uint32_t place_of(const Wide& p) { return p.place; }
"""


def pair_of(dtype: str) -> str:
    """Return the C type of a key with its place, for elements of this dtype."""
    return "order::Wide" if dtype in {"float64", "int64"} else "uint64_t"
