"""The fixed part of CUDA products: how a block multiplies two tiles, on plain cores and on tensor cores."""

HEAD = """
inline int64_t tiles(int64_t n, int64_t size) { return (n + size - 1) / size; }
"""

TENSOR_HEAD = """
// Products of fp32 on tensor cores: each factor is the sum of two TF32 numbers that hold 22 of its bits and more, and
// three of the four partial products are taken. Each eight terms join the sums in fp32, since tensor cores truncate.
#define SPREAD(k, width) ((k) / 4 * 8 & ((width) < 32 ? (width) - 1 : 24) & 24)
__device__ inline void halves(float x, unsigned& high, unsigned& low) {
  high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  low = __float_as_uint(x - __uint_as_float(high));
}
__device__ inline void multiply_16x8x8(float (&sums)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
"""

LOOP = """\
if (depth > 0) {
  fetch(0);
  put(0);
}
__syncthreads();
int now = 0;
for (int64_t k0 = 0; k0 < depth; k0 += DEPTH, now ^= 1) {
  const bool more = k0 + DEPTH < depth;
  if (more) fetch(k0 + DEPTH);
STEP
  if (more) put(now ^ 1);
  __syncthreads();
}"""

THREAD_SUMS = """\
// A thread has 8 x 8 sums: four neighbouring rows and columns in each quarter of the tile.
const int tx = threadIdx.x % (COLUMNS / 8), ty = threadIdx.x / (COLUMNS / 8);
float sums[8][8] = {};"""
THREAD_STEP = """\
#pragma unroll
  for (int k = 0; k < DEPTH; ++k) {
    __align__(16) float a[8], b[8];
    *(float4*)&a[0] = *(const float4*)&left[now][k][ty * 4];
    *(float4*)&a[4] = *(const float4*)&left[now][k][ty * 4 + ROWS / 2];
    *(float4*)&b[0] = *(const float4*)&right[now][k][tx * 4];
    *(float4*)&b[4] = *(const float4*)&right[now][k][tx * 4 + COLUMNS / 2];
#pragma unroll
    for (int i = 0; i < 8; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j) sums[i][j] += a[i] * b[j];
  }"""

# Rows of shared memory are read eight at a time and written in fours along the depth: the exclusive or spreads both
# over all banks.
WARP_SUMS = """\
// A warp has HIGH x WIDE sums, in tiles of 16 x 8; of these a thread has two rows of two neighbours.
constexpr int HIGH = ROWS < 64 ? ROWS : 64, WIDE = 2048 / HIGH;
const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
const int high0 = warp % (ROWS / HIGH) * HIGH, wide0 = warp / (ROWS / HIGH) * WIDE;
float sums[HIGH / 8][WIDE / 4] = {};"""
WARP_STEP = """\
#pragma unroll
  for (int k = 0; k < DEPTH; k += 8) {
    unsigned high[WIDE / 8][2], low[WIDE / 8][2];
#pragma unroll
    for (int j = 0; j < WIDE / 8; ++j)
#pragma unroll
      for (int u = 0; u < 2; ++u)
        halves(right[now][k + q + 4 * u][(wide0 + j * 8 + g) ^ SPREAD(k + 4 * u, COLUMNS)], high[j][u], low[j][u]);
#pragma unroll
    for (int i = 0; i < HIGH / 16; ++i) {
      unsigned a_high[4], a_low[4];
#pragma unroll
      for (int u = 0; u < 4; ++u)
        halves(left[now][k + q + u / 2 * 4][(high0 + i * 16 + u % 2 * 8 + g) ^ SPREAD(k + u / 2 * 4, ROWS)], a_high[u],
               a_low[u]);
#pragma unroll
      for (int j = 0; j < WIDE / 8; ++j) {
        float part[4] = {};
        multiply_16x8x8(part, a_low, high[j]);
        multiply_16x8x8(part, a_high, low[j]);
        multiply_16x8x8(part, a_high, high[j]);
#pragma unroll
        for (int u = 0; u < 4; ++u) sums[i * 2 + u / 2][j * 2 + u % 2] += part[u];
      }
    }
  }"""
