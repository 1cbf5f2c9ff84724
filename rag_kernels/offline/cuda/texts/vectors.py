"""How a thread loads, converts and stores neighbouring elements together.

Goes out: pieces of CUDA text, in the order in which they stand.
"""

from __future__ import annotations

from rag_kernels.offline.cuda.texts.piece import Piece

VECTORS = (
    Piece(
        "Pack",
        """\
// Neighbouring elements that a thread loads or stores together, sixteen bytes at a time.
template <class T, int N> struct __align__(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Pack { T x[N]; };
""",
    ),
    Piece(
        "float_at",
        """\
// An element, out of the word that it shares with its neighbour: nvcc would take vectors apart, a register for each
// element of sixteen bits, and spend two operations on every second one.
template <int N> __device__ inline float float_at(const Pack<__nv_bfloat16, N>& v, int u) {
  uint32_t word;
  memcpy(&word, v.x + u / 2 * 2, 4);
  return __uint_as_float(u % 2 ? word & 0xffff0000u : word << 16);
}
""",
        of="__nv_bfloat16",
    ),
    Piece(
        "float_at",
        """\
template <int N> __device__ inline float float_at(const Pack<__half, N>& v, int u) { return float(v.x[u]); }
""",
        of="__half",
    ),
    Piece(
        "truth_at",
        """\
// Whether an element is not 0, out of the word that it shares: nvcc would take vectors apart, a register a byte.
template <int N> __device__ inline bool truth_at(const Pack<uint8_t, N>& v, int u) {
  if constexpr (N % 4) return v.x[u] != 0;
  uint32_t word;
  memcpy(&word, v.x + u / 4 * 4, 4);
  return (word >> u % 4 * 8 & 0xff) != 0;
}
""",
    ),
    Piece(
        "part_of",
        """\
// The elements of a vector from one to another, where the rest is none of this row's.
template <class T, int N> __device__ Pack<T, N> part_of(const T* __restrict__ from, int64_t begin, int64_t end) {
  Pack<T, N> v{};
#pragma unroll
  for (int u = 0; u < N; ++u) {
    if (u >= begin && u < end) v.x[u] = from[u];
  }
  return v;
}
""",
    ),
    Piece(
        "put_part_of",
        """\
template <class T, int N> __device__ void put_part_of(T* to, const Pack<T, N>& v, int64_t begin, int64_t end) {
#pragma unroll
  for (int u = 0; u < N; ++u) {
    if (u >= begin && u < end) to[u] = v.x[u];
  }
}
""",
    ),
    *(
        Piece(
            "two_floats",
            f"""\
__device__ inline float2 two_floats(const {dtype}* from) {{
  {pair} two;
  memcpy(&two, from, 2);
  return two.operator float2();
}}
""",
            of=dtype,
        )
        for dtype, pair in (("__nv_fp8_e4m3", "__nv_fp8x2_e4m3"), ("__nv_fp8_e5m2", "__nv_fp8x2_e5m2"))
    ),
    Piece(
        "floats_of",
        """\
// Elements of eight bits as floats, two at a time.
template <class T, int N> __device__ Pack<float, N> floats_of(const Pack<T, N>& v) {
  Pack<float, N> all;
#pragma unroll
  for (int u = 0; u < N; u += 2) {
    const float2 two = two_floats(v.x + u);
    all.x[u] = two.x, all.x[u + 1] = two.y;
  }
  return all;
}
""",
    ),
    Piece(
        "rounded_two",
        """\
__device__ inline unsigned rounded_two(__nv_fp8_e4m3, float a, float b) {
  return __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E4M3);
}
""",
        of="__nv_fp8_e4m3",
    ),
    Piece(
        "rounded_two",
        """\
__device__ inline unsigned rounded_two(__nv_fp8_e5m2, float a, float b) {  // from 61440 it is infinity
  const unsigned two = __nv_cvt_float2_to_fp8x2(make_float2(a, b), __NV_SATFINITE, __NV_E5M2);
  return (fabsf(a) >= 61440.0f ? 0x7c : two & 0xff) | (fabsf(b) >= 61440.0f ? 0x7c00 : two & 0xff00);
}
""",
        of="__nv_fp8_e5m2",
    ),
    Piece(
        "narrowed",
        """\
// Floats rounded to eight bits, two at a time; as PyTorch has it a NaN keeps its sign.
template <class T, int N> __device__ Pack<T, N> narrowed(const Pack<float, N>& v) {
  Pack<T, N> all;
#pragma unroll
  for (int u = 0; u < N; u += 2) {
    const float a = v.x[u], b = v.x[u + 1];
    const unsigned signs = __byte_perm(__float_as_uint(a), __float_as_uint(b), 0x73) & 0x8080;
    const unsigned short two = (unsigned short)(rounded_two(T(), a, b) | signs);
    memcpy(all.x + u, &two, 2);
  }
  return all;
}
""",
    ),
    Piece(
        "join_sums",
        """\
// Adds neighbours to neighbours that other threads add to: on Hopper four floats by one operation.
template <class T, int N> __device__ void join_sums(T* at, const Pack<T, N>& v) {
#pragma unroll
  for (int u = 0; u < N; ++u) join_sum(at + u, v.x[u]);
}
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
template <int N> __device__ void join_sums(float* at, const Pack<float, N>& v) {
  static_assert(N % 4 == 0, "vectors of four");
#pragma unroll
  for (int u = 0; u < N; u += 4) {
    atomicAdd((float4*)(at + u), make_float4(v.x[u], v.x[u + 1], v.x[u + 2], v.x[u + 3]));
  }
}
#endif
""",
    ),
    Piece(
        "join_all",
        """\
// Joins neighbours with neighbours by F, while others do.
template <class F, class T, int N> __device__ void join_all(T* at, const Pack<T, N>& v) {
#pragma unroll
  for (int u = 0; u < N; ++u) join_by<F>(at + u, v.x[u]);
}
""",
    ),
    Piece(
        "join_extremes",
        """\
// Joins neighbours with neighbours by the greater, or the lesser, while others do.
template <bool MAX, class T, int N> __device__ void join_extremes(T* at, const Pack<T, N>& v) {
#pragma unroll
  for (int u = 0; u < N; ++u) join_extreme<MAX>(at + u, v.x[u]);
}
""",
    ),
)
