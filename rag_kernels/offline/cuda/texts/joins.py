"""How two partial results become one: sums, extremes and where they stand, running pairs; within a warp's lanes.

Goes out: pieces of CUDA text, in the order in which they stand. `MaxSum` is the running pair of online softmax (Milakov
& Gimelshein, 2018).
"""

from __future__ import annotations

from rag_kernels.offline.cuda.texts.piece import Piece

JOINS = (
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
        "join_extreme",
        """\
// Joins an element by the greater, or the lesser, while others do. Floats of one sign order as their bits do; a NaN is
// made the last of all in that order. One that stands there stays, of either sign, and so does what beats this one.
template <bool MAX, class T, class B, class U> __device__ void join_bits(T* at, T v, B last) {
  const T found = *(volatile T*)at;
  if (found != found || (MAX ? v <= found : v >= found)) return;
  B bits;
  memcpy(&bits, &v, sizeof(T));
  if (v != v) bits = last;
  if (MAX) bits < 0 ? atomicMin((U*)at, U(bits)) : U(atomicMax((B*)at, bits));
  else bits < 0 ? atomicMax((U*)at, U(bits)) : U(atomicMin((B*)at, bits));
}
template <bool MAX> __device__ void join_extreme(float* at, float v) {
  join_bits<MAX, float, int, unsigned>(at, v, MAX ? 0x7fffffff : -1);
}
template <bool MAX> __device__ void join_extreme(double* at, double v) {
  join_bits<MAX, double, long long, unsigned long long>(at, v, MAX ? 0x7fffffffffffffffll : -1ll);
}
template <bool MAX> __device__ void join_extreme(int32_t* at, int32_t v) {
  if (MAX ? v > *(volatile int32_t*)at : v < *(volatile int32_t*)at) MAX ? atomicMax(at, v) : atomicMin(at, v);
}
template <bool MAX> __device__ void join_extreme(int64_t* at, int64_t v) {
  const int64_t found = *(volatile int64_t*)at;
  long long* const word = (long long*)at;
  if (MAX ? v > found : v < found) MAX ? atomicMax(word, (long long)v) : atomicMin(word, (long long)v);
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
        "MergeNear",
        """\
struct MergeNear : Merge {};  // to some last bits, for results of sixteen bits
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
// Several of them at a time; `place` gives the index of each. The extreme comes first, then where it stands.
template <bool MAX, int N, class F> __device__ void take(Place& best, const float (&x)[N], F place) {
  float top = best.value;
#pragma unroll
  for (int u = 0; u < N; ++u) top = extreme<MAX>(top, x[u]);
  if (top == best.value || best.value != best.value) return;
  int which = 0;
#pragma unroll
  for (int u = N - 1; u >= 0; --u) which = x[u] == top ? u : which;
  if (top != top) {
#pragma unroll
    for (int u = N - 1; u >= 0; --u) which = x[u] != x[u] ? u : which;
  }
  best = {top, place(which)};
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
// What neighbouring lanes have together; of a whole warp without a loop, whose counter and branch are more than a step.
template <class T, class F> __device__ T of_lanes(T v, F f, int lanes) {
  if (lanes == 32) {
#pragma unroll
    for (int d = 16; d; d /= 2) v = f(v, lane_xor(v, d));
    return v;
  }
  for (int d = lanes / 2; d; d >>= 1) v = f(v, lane_xor(v, d));
  return v;
}
""",
    ),
    Piece(
        "Greater",
        """\
struct Greater { __device__ float operator()(float a, float b) const { return fmaxf(a, b); } };
""",
    ),
    Piece(
        "of_lanes",
        """\
// Of exponentials the maximum comes first, so that each lane has one of its own to compute.
__device__ inline MaxSum of_lanes(MaxSum v, Merge, int lanes) {
  const float top = of_lanes(v.top, Greater(), lanes);
  v.sum *= double(expf(v.top - (top == -INFINITY ? 0.0f : top)));
  return {top, of_lanes(v.sum, Sum(), lanes)};
}
""",
        of="MaxSum",
    ),
    Piece(
        "of_lanes",
        """\
// The same in floats.
__device__ inline MaxSum of_lanes(MaxSum v, MergeNear, int lanes) {
  const float top = of_lanes(v.top, Greater(), lanes);
  return {top, of_lanes(float(v.sum) * rk_exp_below(v.top, top == -INFINITY ? 0.0f : top), Sum(), lanes)};
}
""",
        of="MergeNear",
        calls="rk_exp_below",
    ),
    Piece(
        "Extreme",
        """\
template <bool MAX> struct Extreme {
  __device__ float operator()(float a, float b) const { return extreme<MAX>(a, b); }
};
""",
    ),
    Piece(
        "Earlier",
        """\
struct Earlier { __device__ uint32_t operator()(uint32_t a, uint32_t b) const { return b < a ? b : a; } };
""",
    ),
    Piece(
        "of_lanes",
        """\
// Of extremes the number comes first, so that each lane has one index to show.
template <bool MAX> __device__ Place of_lanes(Place v, First<MAX>, int lanes) {
  const float top = of_lanes(v.value, Extreme<MAX>(), lanes);
  const uint32_t at = v.value == top || (top != top && v.value != v.value) ? v.at : UINT32_MAX;
  return {top, of_lanes(at, Earlier(), lanes)};
}
""",
        of="Place",
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
        "take_columns",
        """\
// The same where 0 stands for a maximum that is infinite.
template <int N> __device__ void take_columns(float& top, float& sum, const float (&x)[N]) {
  float high = top, more = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) high = fmaxf(high, x[n]);
  const float below = fabsf(high) == INFINITY ? 0.0f : high;
#pragma unroll
  for (int n = 0; n < N; ++n) more += expf(x[n] - below);
  sum = sum * expf(top - below) + more;
  top = high;
}
""",
    ),
    Piece(
        "take_columns_near",
        """\
// The same to some last bits, for results of sixteen bits, and where 0 stands for a maximum that is infinite.
template <int N> __device__ void take_columns_near(float& top, float& sum, const float (&x)[N]) {
  float high = top, more = 0;
#pragma unroll
  for (int n = 0; n < N; ++n) high = fmaxf(high, x[n]);
  const float below = fabsf(high) == INFINITY ? 0.0f : high;
#pragma unroll
  for (int n = 0; n < N; ++n) more += rk_exp_below(x[n], below);
  sum = sum * rk_exp_below(top, below) + more;
  top = high;
}
""",
        calls="rk_exp_below",
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
)
