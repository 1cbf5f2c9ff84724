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
          *to = sums[SUMS_OF_STRIP][i / (BLOCKS / 2) * 8 + u];
        }
  __syncwarp();
  const int top = row0 + strip / (BLOCKS / 2) * 16;
  const int from = row_of_piece * OF_WARP + strip % (BLOCKS / 2) * 32;
TAILS
}"""
