"""The fixed part of CUDA products on plain cores: how a block multiplies two tiles, and joins parts of a depth."""

HEAD = """
inline int64_t tiles(int64_t n, int64_t size) { return (n + size - 1) / size; }
"""

SPLIT = """
// Among how many blocks the depth of few tiles is split: so that each has four steps at least.
inline int split_depth(int64_t tiles, int64_t steps) {
  int parts = 1;
  while (parts < 32 && tiles * parts <= 512 && steps >= 8 * parts) parts *= 2;
  return parts;
}
"""

SUMS = """\
// A thread has 8 x 8 sums: four neighbouring rows and columns in each quarter of the tile.
const int tx = threadIdx.x % (COLUMNS / 8), ty = threadIdx.x / (COLUMNS / 8);
float sums[8][8] = {};"""

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
  }
  if (more) put(now ^ 1);
  __syncthreads();
}"""

BEGIN_PART = """\
const KIND chunk = ((depth + DEPTH - 1) / DEPTH + parts - 1) / parts * DEPTH, begin = blockIdx.x % parts * chunk;
const KIND end = begin + chunk < depth ? begin + chunk : depth;"""

PART_OF_DEPTH = (
    ("depth > 0", "begin < end"),
    ("fetch(0)", "fetch(begin)"),
    ("k0 = 0; k0 < depth", "k0 = begin; k0 < end"),
    ("k0 + DEPTH < depth", "k0 + DEPTH < end"),
)

JOIN_PARTS = """\
if (parts > 1) {  // the last block of a tile adds the parts up, always in the same order
  float* const tile = partial + int64_t(block) * parts * (64 * T) + threadIdx.x;
#pragma unroll
  for (int u = 0; u < 64; ++u) tile[(blockIdx.x % parts * 64 + u) * T] = sums[u / 8][u % 8];
  __threadfence();
  __syncthreads();
  if (!__syncthreads_or(threadIdx.x == 0 && atomicAdd(&arrived[block], 1) == parts - 1)) return;
  __threadfence();
#pragma unroll
  for (int u = 0; u < 64; ++u) sums[u / 8][u % 8] = 0;
  for (int p = 0; p < parts; ++p)
#pragma unroll
    for (int u = 0; u < 64; ++u) sums[u / 8][u % 8] += __ldcg(&tile[(p * 64 + u) * T]);
}"""
