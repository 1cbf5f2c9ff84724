"""The fixed part of CUDA products on plain cores: how a block multiplies two tiles."""

HEAD = """
inline int64_t tiles(int64_t n, int64_t size) { return (n + size - 1) / size; }
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
