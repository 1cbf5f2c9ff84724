"""The fixed part of CUDA products of few rows: what arrives ahead, a warp's products, how warps and blocks add up."""

from rag_kernels.offline.cuda.gemm import byte_pairs

HOST = """
// How many blocks a device holds at once, and among how many the depth of a tile is split, so that all have as much.
template <class K> int64_t few_places(K kernel, int threads, int64_t bytes) {
  int device = 0, processors = 132, held = 1;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  const auto raised = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes));
  RK_CHECK(raised == cudaSuccess, "this product needs more shared memory than the device has");
  cudaOccupancyMaxActiveBlocksPerMultiprocessor(&held, kernel, threads, size_t(bytes));
  return int64_t(processors) * (held > 0 ? held : 1);
}
inline int few_parts(int64_t tiles, int64_t steps, int64_t places) {
  double least = 1e30;
  int best = 1;
  for (int parts = 1; parts == 1 || (parts <= 32 && parts * 4 <= steps); ++parts) {
    const double waves = double((tiles * parts + places - 1) / places), chunk = double((steps + parts - 1) / parts);
    const double time = waves * (chunk + 1.5) + 0.5 * (parts > 1);
    if (time < 0.97 * least) least = time, best = parts;
  }
  return best;
}
"""


def device_text(numbers: str) -> str:
    """Return the fixed text of the device for this number format."""
    kind = {"bfloat16": "bf16", "float16": "f16"}[numbers]
    stored = {"bfloat16": "__nv_bfloat16", "float16": "__half"}[numbers]
    return f"""
// Two floats, rounded, in one register.
template <class T> __device__ inline unsigned pair_of(float a, float b);
template <> __device__ inline unsigned pair_of<{stored}>(float a, float b) {{
#ifdef __CUDACC__
  unsigned both;
  asm("cvt.rn.{kind}x2.f32 %0, %1, %2;" : "=r"(both) : "f"(b), "f"(a));
#else
  Pack<{stored}, 2> two;
  two.x[0] = a, two.x[1] = b;
  unsigned both;
  memcpy(&both, &two, 4);
#endif
  return both;
}}
// Bytes become floats by their place in the fraction of 2^23: converters take four times as long.
__device__ inline float float_of_byte(unsigned word, int byte) {{
#ifdef __CUDACC__
  return __uint_as_float(__byte_perm(word, 0x4b000000u, 0x7440u + byte)) - 8388608.0f;
#else
  return float(word >> 8 * byte & 255);
#endif
}}
template <class T> __device__ inline void floats_of_bytes(const uint4& sixteen, float (&x)[16]) {{
#ifdef __CUDACC__
  constexpr bool SIGNED = T(-1) < T(0);
  const unsigned words[4] = {{sixteen.x, sixteen.y, sixteen.z, sixteen.w}};
#pragma unroll
  for (int i = 0; i < 16; ++i) {{
    const unsigned four = SIGNED ? words[i / 4] ^ 0x80808080u : words[i / 4];
    x[i] = __uint_as_float(__byte_perm(four, 0x4b000000u, 0x7440u + i % 4)) - (SIGNED ? 8388736.0f : 8388608.0f);
  }}
#else
  T bytes[16];
  memcpy(bytes, &sixteen, 16);
  for (int i = 0; i < 16; ++i) x[i] = float(bytes[i]);
#endif
}}
{byte_pairs.device_text(numbers, stored)}"""


BEGIN = """\
extern __shared__ float shared[];
char* const ring = (char*)shared;  // [stage]: lines of rows, then of columns
const unsigned across = (rows + ROWS - 1) / ROWS, along = (columns + COLUMNS - 1) / COLUMNS;
const unsigned block = blockIdx.x / parts, z_ = block / (across * along), tile = block % (across * along);
const KIND z = z_, row0 = KIND(tile % across) * ROWS, column0 = KIND(tile / across) * COLUMNS;
const int steps = int((depth + DEPTH - 1) / DEPTH), chunk = (steps + parts - 1) / parts;
const int first = int(blockIdx.x % parts) * chunk, last = first + chunk < steps ? first + chunk : steps;"""

LOOP = """\
// A thread copies the same vector of every so many lines.
constexpr int LEFT_LINES = T / (DEPTH / 8), RIGHT_LINES = T / (DEPTH / EACH);
const int left_line = threadIdx.x / (DEPTH / 8), left_v = threadIdx.x % (DEPTH / 8);
const int right_line = threadIdx.x / (DEPTH / EACH), right_v = threadIdx.x % (DEPTH / EACH);
const int left_there = rows - row0 < ROWS ? int(rows - row0) : ROWS;
const int right_there = columns - column0 < COLUMNS ? int(columns - column0) : COLUMNS;
const auto* next_left = from_left + int64_t(left_line) * LEFT_STEP + left_v * 8 + KIND(first) * DEPTH;
const KIND right_from = (right_v * EACH + KIND(first) * DEPTH) / PACKED;
const auto* next_right = from_right + int64_t(right_line) * RIGHT_STEP + right_from;
const int64_t left_step = LEFT_LINES * int64_t(LEFT_STEP), right_step = RIGHT_LINES * int64_t(RIGHT_STEP);
// The next piece of the depth on its way to shared memory; what lies outside is zero.
const auto fetch = [&](int step) {
  char* const to = ring + (step - first) % STAGES * STAGE;
  const KIND k0 = KIND(step) * DEPTH;
  const bool of_left = k0 + left_v * 8 < depth, of_right = k0 + right_v * EACH < depth;
  const auto* from_left = next_left;
#pragma unroll
  for (int line = 0; line < ROWS; line += LEFT_LINES, from_left += left_step)
    copy_or_clear((float4*)(to + (line + left_line) * LEFT + left_v * 16), from_left,
                  of_left && line + left_line < left_there);
  const auto* from_right = next_right;
#pragma unroll
  for (int line = 0; line < COLUMNS; line += RIGHT_LINES, from_right += right_step)
    copy_or_clear((float4*)(to + ROWS * LEFT + (line + right_line) * RIGHT + right_v * 16), from_right,
                  of_right && line + right_line < right_there);
  next_left += DEPTH, next_right += DEPTH / PACKED;
};
const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, q = threadIdx.x % 4;
float sums[ROWS / 16][COLUMNS / 8][4] = {};
BRING
for (int s = 0; s < STAGES - 1; ++s) {
  if (first + s < last) fetch(first + s);
  close_copies();
}
for (int step = first; step < last; ++step) {
  await_copies(STAGES - 2);
  __syncthreads();
  if (step + STAGES - 1 < last) fetch(step + STAGES - 1);
  close_copies();
BROUGHT
  const char* const here = ring + (step - first) % STAGES * STAGE;
  const int term = (warp * 4 + q) * EACH;  // of the piece: the thread's first
  uint4 rows_of[ROWS / 8][EACH / 8];  // its terms of rows g, g + 8, ...
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i)
#pragma unroll
    for (int h = 0; h < EACH / 8; ++h) rows_of[i][h] = *(const uint4*)(here + (i * 8 + g) * LEFT + term * 2 + h * 16);
ORDER
#pragma unroll
  for (int j = 0; j < COLUMNS / 8; ++j) {
    const char* const at = here + ROWS * LEFT + (j * 8 + g) * RIGHT + term / PACKED * sizeof(ELEMENT);
    const uint4 w = *(const uint4*)at;
    unsigned b[EACH / 2];
    {
      CONVERT
    }
#pragma unroll
    for (int i = 0; i < ROWS / 16; ++i)
#pragma unroll
      for (int h = 0; h < EACH / 8; ++h) {
        const uint4 high = rows_of[2 * i][h], low = rows_of[2 * i + 1][h];
        const unsigned a0[4] = {high.x, low.x, high.y, low.y}, a1[4] = {high.z, low.z, high.w, low.w};
        const unsigned b0[2] = {b[4 * h], b[4 * h + 1]}, b1[2] = {b[4 * h + 2], b[4 * h + 3]};
        multiply_16x8_NUMBERS(sums[i][j], a0, b0);
        multiply_16x8_NUMBERS(sums[i][j], a1, b1);
      }
  }
}"""

ORDER = """\
  // Terms of two neighbouring bytes stand together: 0 and 2, 1 and 3.
#pragma unroll
  for (int i = 0; i < ROWS / 8; ++i)
#pragma unroll
    for (int h = 0; h < EACH / 8; ++h) {
      const uint4 x = rows_of[i][h];
      rows_of[i][h] = {(x.x & 0xffff) | x.y << 16, x.x >> 16 | (x.y & 0xffff0000),
                       (x.z & 0xffff) | x.w << 16, x.z >> 16 | (x.w & 0xffff0000)};
    }"""

TOGETHER = """\
await_copies(0);
__syncthreads();
#pragma unroll
for (int i = 0; i < ROWS / 8; ++i)
#pragma unroll
  for (int j = 0; j < COLUMNS / 8; ++j)
    *(float2*)&shared[(warp * ROWS + i * 8 + g) * SKEW + j * 8 + q * 2] =
        make_float2(sums[i / 2][j][i % 2 * 2], sums[i / 2][j][i % 2 * 2 + 1]);
__syncthreads();
const auto of_warps = [&](int i) {
  float sum = 0;
#pragma unroll
  for (int w = 0; w < WARPS; ++w) sum += shared[(w * ROWS + i / COLUMNS) * SKEW + i % COLUMNS];
  return sum;
};
float* const of_parts = partial + int64_t(block) * parts * (ROWS * COLUMNS);
if (parts > 1) {  // the last block of a tile adds the parts up, always in the same order
  float* const mine = of_parts + blockIdx.x % parts * (ROWS * COLUMNS);
  for (int i = threadIdx.x; i < ROWS * COLUMNS; i += T) mine[i] = of_warps(i);
  __threadfence();
  __syncthreads();
  if (!__syncthreads_or(threadIdx.x == 0 && atomicAdd(&arrived[block], 1) == parts - 1)) return;
  __threadfence();
}
const auto of_all = [&](int i) {
  if (parts == 1) return of_warps(i);
  float sum = 0;
  for (int p = 0; p < parts; ++p) sum += __ldcg(&of_parts[p * (ROWS * COLUMNS) + i]);
  return sum;
};"""
