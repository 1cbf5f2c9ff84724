"""The fixed part of convolutions whose pixels go through registers: where these lie, a step, and how results leave."""

# Where a tile's piece lies, which pixel of it a thread begins with, and which column of the result a place of it is.
PLACES = """\
  const int spot = column0 / WIDE, slice = spot / (ACROSS_IMAGE) / (DOWN_IMAGE);
  const int x0 = spot % (ACROSS_IMAGE) * BROAD, y0 = spot / (ACROSS_IMAGE) % (DOWN_IMAGE) * 4;
  const bool whole = x0 + BROAD <= (WIDTH) && y0 + 4 <= (HEIGHT);
  const auto row_shift = [&](int line) { return int((KIND(slice) * (HEIGHT) + line) * (WIDTH) & SHIFTS); };
  const auto column_of = [&](int at) -> KIND {
PHASE_OF_COLUMN
    const int line = y0 + at / OF_WARP, pixel = x0 + PLACE_IN_ROW - row_shift(line);
    const bool inside = pixel >= 0 && pixel < (WIDTH) && line < (HEIGHT);
    return inside ? (KIND(slice) * (HEIGHT) + line) * (WIDTH) + pixel : columns;
  };
  const int row_of_piece = threadIdx.x % 128 / 32;
  const int of_piece = row_of_piece * PITCH_OF_PIECE + LEAD - row_shift(y0 + row_of_piece);
  const int of_thread = of_piece + lane % 4 * PLANE + lane / 4;
"""

# A step is a block of channels: eight of them, of one place of the window, at a time. While these are multiplied the
# pixels of the next eight are loaded.
STEP = """\
    uint32_t filters = left;
PHASES_OF_STEP"""

TAPS = """\
const auto multiply = [&](int n, uint32_t (&pixels)[TOGETHER][4]) {
  const int tap = n / FOLLOW, q = n % FOLLOW;
  const uint32_t of_place = filters + tap * (ROWS * LINE) + q * (ROWS * 32);
  const uint32_t from = right + (of_thread + (OFFSET) + q * (8 * PLANE)) * 4;
#pragma unroll
  for (int h = 0; h < TOGETHER; ++h)
#pragma unroll
    for (int u = 0; u < 4; ++u)
      pixels[h][u] = rk::shared_word(from + (h * 16 + u % 2 * 8 + u / 2 * (4 * PLANE)) * 4);
#pragma unroll
  for (int h = 0; h < TOGETHER; ++h) rk::wgmma_hold(sums[SUMS]);
  rk::wgmma_fence();
#pragma unroll
  for (int h = 0; h < TOGETHER; ++h)
    MULTIPLY(sums[SUMS], pixels[h], rk::wgmma_descriptor(of_place, ROWS * 16, 128, 0), k | n);
  rk::wgmma_commit();
  rk::wgmma_wait<1>();
};
uint32_t even[TOGETHER][4], odd[TOGETHER][4];
multiply(0, even);
RELEASE
UNROLL
for (int n = 1; n + 1 < (TAPS) * FOLLOW; n += 2) {
  multiply(n, odd);
  multiply(n + 1, even);
SETTLED
}
if ((TAPS) * FOLLOW % 2) rk::wgmma_wait<0>();
else multiply((TAPS) * FOLLOW - 1, odd);
filters += (TAPS) * (ROWS * LINE);"""

# Sixteen filters of 32 neighbouring pixels of a warp at a time, through its part of shared memory.
STRIPS = """\
constexpr int DOWN = 16, ACROSS = 32, PITCH = SKEW;  // what a warp has at a time
const auto filters_of = [](int i) { return FILTERS_OF; };
const auto pixels_of = [](int i) { return PIXELS_OF; };
const auto exchanged = [](int) { return 0; };
#pragma unroll 1
for (int strip = 0; strip < COLUMNS * BLOCKS / 32; ++strip) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < COLUMNS * BLOCKS / 32; ++i)
    if (i == strip)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int u = 0; u < 8; ++u) {
          float* const to = staged + (u / 4 * 8 + lane % 4 * 2 + u % 2) * SKEW + PLACE_OF_SUM;
          *to = sums[SUMS_OF_STRIP][filters_of(i) * 8 + u];
        }
  __syncwarp();
  const int top = row0 + filters_of(strip) * 16;
  const int from = row_of_piece * OF_WARP + pixels_of(strip) * 32;
TAILS
}"""

# Strips of the same filters come one after the other, or those of the same pixels.
BY_FILTERS = {"FILTERS_OF": "i / (BLOCKS / 2)", "PIXELS_OF": "i % (BLOCKS / 2)"}
BY_PIXELS = {"FILTERS_OF": "i % (COLUMNS / 16)", "PIXELS_OF": "i / (COLUMNS / 16)"}

# Where what all pixels come to is stored, two lanes have those of a filter in a strip. Lanes beyond the last filter
# repeat it.
SUMS_OF_PIXELS = """\
if (top < rows) {
  const bool leader = lane % 2 == 0 && lane / 2 < rows - top;
  const KIND row = lane / 2 < rows - top ? top + lane / 2 : rows - 1;
FILTER
  if (pixels_of(strip) == 0) STARTS;
  const auto join = [&](int at, float sum) {
    const KIND column = column_of(at);
PIXEL
  };
  const float* const of_lane = staged + lane / 2 * SKEW + lane % 2 * 16;
  const int at = from + lane % 2 * 16;
  const bool inside = whole && (x0 > 0 || SHIFTS == 0);
#pragma unroll
  for (int q = 0; q < 16; q += 4) {
    float four[4];
    *reinterpret_cast<float4*>(four) = *reinterpret_cast<const float4*>(of_lane + q);
#pragma unroll
    for (int u = 0; u < 4; ++u)
      if (inside || column_of(at + q + u) < columns) join(at + q + u, four[u]);
  }
  if (pixels_of(strip) == BLOCKS / 2 - 1) {
    const int64_t slot = (int64_t(column0 / WIDE) * PHASES + tile % PHASES) * 4 + row_of_piece;
JOINS
  }
}
"""

# Where what all filters come to is stored, a lane has a pixel, of which it goes down the filters.
SUMS_OF_FILTERS = """\
const KIND column = column_of(from + lane);
if (filters_of(strip) == 0) STARTS;
if (column < columns) {
PIXEL
#pragma unroll
  for (int e = 0; e < 16; ++e) {
    const KIND row = top + e;
    if (row >= rows) continue;
    const float sum = staged[e * SKEW + lane];
FILTER
  }
  if (filters_of(strip) == COLUMNS / 16 - 1) {
STORES
  }
}
"""

# Pieces, each with a number for each filter, lie image after image.
HOST = """
template <class F> __global__ void tma_join_pieces(const float* from, float* to, int filters, int each, float start,
                                                   F join) {
  __shared__ float shown[32][32];
  const int across = (filters + 31) / 32, lane = threadIdx.x % 32, line = threadIdx.x / 32;
  const int filter = blockIdx.x % across * 32 + lane;
  const int64_t image = blockIdx.x / across;
  float total = start;
  if (filter < filters)
#pragma unroll 8
    for (int piece = line; piece < each; piece += 32)
      total = join(total, from[(image * each + piece) * filters + filter]);
  shown[line][lane] = total;
  __syncthreads();
  if (line || filter >= filters) return;
  for (int i = 1; i < 32; ++i) total = join(total, shown[i][lane]);
  to[image * filters + filter] = total;
}
"""
