"""The fixed part of CUDA products on tensor cores: halves of numbers, a warp's products, the loop over the depth.

The three products of TF32 halves are those of Ootomo & Yokota (2022).
"""

HEAD = """
// Products of fp32 on tensor cores: each factor is the sum of two TF32 numbers that hold 22 of its bits and more, and
// three of the four partial products are taken. The sums of 32 terms join in fp32, since tensor cores truncate.
__device__ inline void halves(float x, unsigned& high, unsigned& low) {
  high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}
__device__ inline float* multiple_of_1024(float* p) { return (float*)((uintptr_t(p) + 1023) & ~uintptr_t(1023)); }

// A lane (a row or column) of 32 terms is 128 bytes; its quads are exchanged by `^ lane % 8`, as wgmma reads them. All
// high halves of a tile lie before all low ones.
__device__ inline void put_quad(float* high, float* low, int lane, int k, const float4& v) {
  __align__(16) unsigned h[4], l[4];
  halves(v.x, h[0], l[0]), halves(v.y, h[1], l[1]), halves(v.z, h[2], l[2]), halves(v.w, h[3], l[3]);
  const int at = lane * 32 + ((k / 4 ^ lane % 8) * 4);
  *(float4*)(high + at) = *(float4*)h, *(float4*)(low + at) = *(float4*)l;
}

// The same for products of one pass: a line has 32 terms of four bytes, which are rounded, or 64 of two.
template <class T> struct __align__(4 * sizeof(T)) Four { T x, y, z, w; };
__device__ inline void put_four(float* lines, int lane, int k, const float4& v) {
  __align__(16) unsigned h[4], l[4];
  halves(v.x, h[0], l[0]), halves(v.y, h[1], l[1]), halves(v.z, h[2], l[2]), halves(v.w, h[3], l[3]);
  *(float4*)(lines + lane * 32 + ((k / 4 ^ lane % 8) * 4)) = *(float4*)h;
}
template <class T> __device__ inline void put_four(float* lines, int lane, int k, const Four<T>& v) {
  *(float2*)(lines + lane * 32 + ((k / 8 ^ lane % 8) * 4) + k / 4 % 2 * 2) = *(float2*)&v;
}

// `multiply`: four warps' products of 64 rows and 2 N columns over 32 terms, of which a warp has 16 rows. A thread has
// of each eight columns two neighbours in two rows.
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
__device__ inline void publish() { rk::tma_publish(); }
__device__ inline uint64_t descriptor(const float* p) { return rk::wgmma_descriptor(rk::tma_address(p), 16, 1024); }
template <int N>
__device__ inline void multiply(float (&part)[N], const float* a, int half_a, const float* b, int half_b) {
  const uint64_t high_a = descriptor(a), low_a = descriptor(a + half_a);
  const uint64_t high_b = descriptor(b), low_b = descriptor(b + half_b);
  rk::wgmma_hold(part);
  rk::wgmma_fence();
#pragma unroll
  for (int s = 0; s < 8; s += 2) {
    rk::wgmma_tf32(part, low_a + s, high_b + s, s);
    rk::wgmma_tf32(part, high_a + s, low_b + s, 1);
    rk::wgmma_tf32(part, high_a + s, high_b + s, 1);
  }
  rk::wgmma_commit();
}
template <int N> __device__ inline void finish(float (&part)[N]) {
  rk::wgmma_wait<0>();
  rk::wgmma_hold(part);
}
#else
__device__ inline void multiply_16x8x8(float* sums, const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
__device__ inline void publish() {}
template <int N> __device__ inline void finish(float (&)[N]) {}
__device__ inline unsigned term(const float* p, int lane, int k) {
  return __float_as_uint(p[lane * 32 + ((k / 4 ^ lane % 8) * 4) + k % 4]);
}
template <int N>
__device__ inline void multiply(float (&part)[N], const float* a, int half_a, const float* b, int half_b) {
  const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, q = threadIdx.x % 4;
#pragma unroll
  for (int u = 0; u < N; ++u) part[u] = 0;
#pragma unroll
  for (int k = q; k < 32; k += 8) {
    const unsigned high_a[4] = {term(a, row, k), term(a, row + 8, k), term(a, row, k + 4), term(a, row + 8, k + 4)};
    const float* const l = a + half_a;
    const unsigned low_a[4] = {term(l, row, k), term(l, row + 8, k), term(l, row, k + 4), term(l, row + 8, k + 4)};
#pragma unroll
    for (int j = 0; j < N / 4; ++j) {
      const int column = j * 8 + threadIdx.x % 32 / 4;
      const unsigned high_b[2] = {term(b, column, k), term(b, column, k + 4)};
      const unsigned low_b[2] = {term(b + half_b, column, k), term(b + half_b, column, k + 4)};
      multiply_16x8x8(&part[j * 4], low_a, high_b);
      multiply_16x8x8(&part[j * 4], high_a, low_b);
      multiply_16x8x8(&part[j * 4], high_a, high_b);
    }
  }
}
#endif

// Among how many blocks the depth of a tile is split, so that the last wave of blocks is nearly full.
inline int parts_of(int64_t tiles, int64_t depth) {
  int device = 0, processors = 132;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  double least = 1e30;
  int best = 1;
  for (int parts = 1; parts == 1 || (parts * 256 <= depth && parts <= processors && tiles < 4 * processors); ++parts) {
    const double time = double((tiles * parts + processors - 1) / processors) / parts + 0.01 * (parts > 1);
    if (time < 0.9 * least) least = time, best = parts;
  }
  return best;
}
"""


KINDS = {"tf32": ("tf32", 8), "bfloat16": ("bf16", 16), "float16": ("f16", 16)}  # in PTX, and terms of an instruction


def one_instruction(numbers: str) -> str:
    """Return the text of a warp's product of 16 rows and 8 columns, in TF32 or of numbers of sixteen bits."""
    kind, terms = KINDS[numbers]
    return f"""
__device__ inline void multiply_16x8_{numbers}(float* sums, const unsigned (&a)[4], const unsigned (&b)[2]) {{
  asm("mma.sync.aligned.m16n8k{terms}.row.col.f32.{kind}.{kind}.f32 "
      "{{%0, %1, %2, %3}}, {{%4, %5, %6, %7}}, {{%8, %9}}, {{%0, %1, %2, %3}};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}}
"""


def one_product(numbers: str) -> str:
    """Return the fixed text of products that take one pass: in TF32, or of numbers of sixteen bits."""
    kind, _ = KINDS[numbers]
    return f"""
template <int N>
__device__ inline void multiply_{numbers}(float (&sums)[N], const float* a, const float* b, int more) {{
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  const uint64_t from_a = descriptor(a), from_b = descriptor(b);
  rk::wgmma_hold(sums);
  rk::wgmma_fence();
#pragma unroll
  for (int s = 0; s < 8; s += 2) rk::wgmma_{kind}(sums, from_a + s, from_b + s, more | s);
  rk::wgmma_commit();
#else
  const int row = threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4, q = threadIdx.x % 4;
  if (!more)
#pragma unroll
    for (int u = 0; u < N; ++u) sums[u] = 0;
#pragma unroll
  for (int k = q; k < 32; k += 8) {{
    const unsigned of_a[4] = {{term(a, row, k), term(a, row + 8, k), term(a, row, k + 4), term(a, row + 8, k + 4)}};
#pragma unroll
    for (int j = 0; j < N / 4; ++j) {{
      const int column = j * 8 + threadIdx.x % 32 / 4;
      const unsigned of_b[2] = {{term(b, column, k), term(b, column, k + 4)}};
      multiply_16x8_{numbers}(&sums[j * 4], of_a, of_b);
    }}
  }}
#endif
}}
"""


BEGIN = """\
extern __shared__ float shared[];
float* const left = multiple_of_1024(shared);  // [buffer][half][row][term]; a line has 128 bytes
float* const right = left + 2 * HALVES * ROWS * LINE;  // [buffer][half][column][term]
// Blocks run through bands of eight tiles of rows, so that neighbours share what they load.
const unsigned across = (rows + ROWS - 1) / ROWS, along = (columns + WIDE - 1) / WIDE;
const unsigned block = blockIdx.x / parts, z_ = block / (across * along), t = block % (across * along);
const unsigned band = t / (8 * along), in = t % (8 * along), tall = across - band * 8 < 8 ? across - band * 8 : 8;
const KIND z = z_, row0 = KIND(band * 8 + in % tall) * ROWS, column0 = KIND(in / tall) * WIDE;
const KIND chunk = ((depth + DEPTH - 1) / DEPTH + parts - 1) / parts * DEPTH, begin = blockIdx.x % parts * chunk;
const KIND end = begin + chunk < depth ? begin + chunk : depth;
QUAD next_left[ROWS * DEPTH / 4 / T], next_right[WIDE * DEPTH / 4 / T];"""

# What comes next is split and put while the tensor cores work, and what comes after it is on its way to registers.
LOOP = """\
const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
const int high0 = warp % (ROWS / 16) * 16, wide0 = warp / (ROWS / 16) * (2 * SUMS);
float sums[SUMS] = {};
if (begin < end) {
  fetch(begin);
  put(0);
  if (begin + DEPTH < end) fetch(begin + DEPTH);
}
__syncthreads();
int now = 0;
for (KIND k0 = begin; k0 < end; k0 += DEPTH, now ^= 1) {
  const float* const a = left + (now * HALVES * ROWS + high0 / 64 * 64) * LINE;
  const float* const b = right + (now * HALVES * COLUMNS + wide0) * LINE;
  MULTIPLY
  if (k0 + DEPTH < end) put(now ^ 1);
  if (k0 + 2 * DEPTH < end) fetch(k0 + 2 * DEPTH);
  FINISH
  __syncthreads();
}
if (parts > 1) {  // the last block of a tile adds the parts up, always in the same order
  float* const tile = partial + int64_t(block) * parts * (SUMS * T) + threadIdx.x;
#pragma unroll
  for (int u = 0; u < SUMS; ++u) tile[(blockIdx.x % parts * SUMS + u) * T] = sums[u];
  __threadfence();
  __syncthreads();
  if (!__syncthreads_or(threadIdx.x == 0 && atomicAdd(&arrived[block], 1) == parts - 1)) return;
  __threadfence();
#pragma unroll
  for (int u = 0; u < SUMS; ++u) sums[u] = 0;
  for (int p = 0; p < parts; ++p)
#pragma unroll
    for (int u = 0; u < SUMS; ++u) sums[u] += __ldcg(&tile[(p * SUMS + u) * T]);
}"""

THREE = (
    "float part[SUMS];\nmultiply(part, a, ROWS * LINE, b, COLUMNS * LINE);",
    """\
finish(part);
#pragma unroll
for (int u = 0; u < SUMS; ++u) sums[u] += part[u];""",
)

# Through shared memory, so that neighbouring threads store neighbouring columns and take a column apart once.
EPILOGUE = """\
float* const tile = left;
#pragma unroll
for (int u = 0; u < SUMS; u += 2) {
  const int row = high0 + u / 2 % 2 * 8 + g, column = wide0 + u / 4 * 8 + q * 2;
  *(float2*)&tile[row * (COLUMNS + 8) + column] = make_float2(sums[u], sums[u + 1]);
}
__syncthreads();"""
