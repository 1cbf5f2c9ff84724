"""The fixed part of convolutions over pieces of images: copies in which sixteen bytes of channels lie together."""

HOST = """
// [image][channel][place] becomes [image][chunk][place][channel of the chunk]: sixteen bytes of channels a place. A
// thread makes two neighbouring places, where there is an even number of them.
template <int TWO, class T> __global__ void tma_chunk(const T* from, T* to, int channels, int chunks, int64_t places,
                                                      int64_t along) {
  constexpr int EACH = 16 / sizeof(T);
  const int64_t plane = blockIdx.x / along, at = (blockIdx.x % along * blockDim.x + threadIdx.x) * TWO;
  const int first = plane % chunks * EACH;
  if (at >= places) return;
  from += (plane / chunks * channels + first) * places + at;
  Pack<T, EACH> made[TWO] = {};
#pragma unroll
  for (int u = 0; u < EACH; ++u)
    if (first + u < channels) {
      const Pack<T, TWO> pair = *reinterpret_cast<const Pack<T, TWO>*>(from + u * places);
#pragma unroll
      for (int h = 0; h < TWO; ++h) made[h].x[u] = pair.x[h];
    }
  Pack<T, EACH>* const out = reinterpret_cast<Pack<T, EACH>*>(to) + plane * places + at;
#pragma unroll
  for (int h = 0; h < TWO; ++h) out[h] = made[h];
}
template <class T> TmaTurned<T> tma_chunks(const T* p, int64_t images, int channels, int64_t places,
                                           cudaStream_t stream) {
  const int each = 16 / sizeof(T), chunks = (channels + each - 1) / each;
  TmaTurned<T> made = {scratch<T>(images * chunks * places * each, stream), {}};
  const bool even = places % 2 == 0 && uintptr_t(p) % (2 * sizeof(T)) == 0;
  const int64_t along = (places + (even ? 511 : 255)) / (even ? 512 : 256);
  const unsigned grid = blocks(images * chunks * along);
  if (even) tma_chunk<2><<<grid, 256, 0, stream>>>(p, made.copy, channels, chunks, places, along);
  else tma_chunk<1><<<grid, 256, 0, stream>>>(p, made.copy, channels, chunks, places, along);
  return made;
}
// Filters as a step takes them: [tall][step][place of the window][chunk][filter][channel], `tall` filters of a tile and
// zeros where there are none, as in slots beyond the places; those of fp32 are rounded to TF32.
__device__ inline float tma_rounded(float x) { return __uint_as_float((__float_as_uint(x) + 0x1000u) & 0xffffe000u); }
template <class T> __device__ inline T tma_rounded(T x) { return x; }
template <class T> __global__ void tma_pack(const T* from, T* to, int64_t all, int tall, int rows, int channels,
                                            int places, int slots, int steps, int chunks, int64_t row, int64_t place,
                                            int64_t channel) {
  constexpr int EACH = 16 / sizeof(T);
  const int64_t at = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (at >= all) return;
  int64_t rest = at / tall;
  const int chunk = rest % chunks;
  const int tap = (rest /= chunks) % slots;
  const int step = (rest /= slots) % steps, c = (step * chunks + chunk) * EACH;
  const int64_t filter = rest / steps * tall + at % tall;
  Pack<T, EACH> pack = {};
#pragma unroll
  for (int u = 0; u < EACH; ++u)
    if (filter < rows && tap < places && c + u < channels)
      pack.x[u] = tma_rounded(from[filter * row + tap * place + (c + u) * channel]);
  *reinterpret_cast<Pack<T, EACH>*>(&to[at * EACH]) = pack;
}
template <class T> TmaTurned<T> tma_packed(const T* p, int tall, int rows, int places, int slots, int channels,
                                           int chunks, int64_t row, int64_t place, int64_t channel,
                                           cudaStream_t stream) {
  const int each = 16 / sizeof(T) * chunks, steps = (channels + each - 1) / each, n = rows, q = channels;
  const int64_t all = tiles(rows, tall) * steps * slots * chunks * tall, grid = (all + 255) / 256;
  TmaTurned<T> made = {scratch<T>(all * 16 / sizeof(T), stream), {}};
  T* const to = made.copy;
  const int64_t r = row, s = place, t = channel;
  tma_pack<<<blocks(grid), 256, 0, stream>>>(p, to, all, tall, n, q, places, slots, steps, chunks, r, s, t);
  return made;
}
"""

# A step is a block of channels: all places of the window, each with the filters of its own...
STEP = """\
#pragma unroll
    for (int h = 0; h < BLOCKS; ++h) rk::wgmma_hold(sums[h]);
    rk::wgmma_fence();
    uint32_t filters = left;
PHASES_OF_STEP
    rk::wgmma_commit();
    if (k) {
      rk::wgmma_wait<1>();
      release(before);
    }"""

# ... by which the pixels of a piece are multiplied: eight columns of it, and eight rows, at a time.
TAP = """\
for (int tap = 0; tap < TAPS; ++tap, filters += ROWS * LINE) {
  const uint32_t pixels = right + (OFFSET) * 16;
#pragma unroll
  for (int q = 0; q < FOLLOW; ++q)
#pragma unroll
    for (int h = 0; h < COLUMNS_OF_EIGHT; ++h) {
      const uint64_t a = rk::wgmma_descriptor(filters + q * 2048, 1024, 128, 0);
      const uint64_t b = rk::wgmma_descriptor(pixels + q * 2 * PLANE + h * 128, PLANE, PITCH_OF_PIECE, 0);
      MULTIPLY(sums[SUMS], a, b, k | tap | q);
    }
}"""

# Where a tile's piece lies, and which column of the result a place of it is.
COLUMNS = """\
  const int spot = column0 / WIDE, slice = spot / (ACROSS_IMAGE) / (DOWN_IMAGE);
  const int x0 = spot % (ACROSS_IMAGE) * BROAD, y0 = spot / (ACROSS_IMAGE) % (DOWN_IMAGE) * 8;
  const bool whole = x0 + BROAD <= (WIDTH) && y0 + 8 <= (HEIGHT);
  const auto column_of = [&](int at) -> KIND {
PHASE_OF_COLUMN
    const int pixel = x0 + PLACE_IN_ROW, line = y0 + at / 32;
    return pixel < (WIDTH) && line < (HEIGHT) ? (KIND(slice) * (HEIGHT) + line) * (WIDTH) + pixel : columns;
  };
"""

# A warp's sixteen filters, of a row of the piece at a time, through its part of shared memory, as in `hopper/text.py`.
STRIPS = """\
constexpr int DOWN = 16, ACROSS = 32, PITCH = SKEW;  // what a warp has at a time
const auto exchanged = [](int row) { return row % 2 * 4; };
float* const of_lane = staged + lane / 4 * SKEW;
#pragma unroll 1
for (int strip = 0; strip < 8; ++strip) {
  __syncwarp();
#pragma unroll
  for (int i = 0; i < 8; ++i)
    if (i == strip)
#pragma unroll
      for (int h = 0; h < 4; ++h)
#pragma unroll
        for (int u = 0; u < 2; ++u) {
          float* const to = of_lane + u * 8 * SKEW + (PLACE_OF_PAIR ^ lane / 4 % 2 * 4);
          *reinterpret_cast<float2*>(to) = make_float2(PAIR);
        }
  __syncwarp();
  const int top = row0 + threadIdx.x % 128 / 32 * 16;
  const int from = strip * 32;
TAILS
}"""
