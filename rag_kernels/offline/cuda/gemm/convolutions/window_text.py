"""The fixed part of convolutions on Hopper: copies in which a pixel's channels lie side by side."""

HOST = """
// [image][channel][place] becomes [image][place][channel], a pixel's channels filled up to whole sixteen bytes.
template <class T> __global__ void tma_turn(const T* from, T* to, int channels, int places, int padded, int across,
                                            int along, bool whole) {
  constexpr int EACH = 16 / sizeof(T), HIGH = 128 / sizeof(T), WIDE = 128, SKEW = 4 / sizeof(T);
  __shared__ __align__(16) T tile[WIDE][HIGH + SKEW];
  const int c0 = blockIdx.x % across * HIGH, p0 = blockIdx.x / across % along * WIDE;
  const int64_t image = blockIdx.x / across / along;
  from += image * channels * places, to += image * places * padded;
  if (whole) {
    Pack<T, EACH> four[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = e * 256 + threadIdx.x, p = (at % 4 + at / 32 % (WIDE / EACH / 4) * 4) * EACH;
      const int c = at / 4 % 8 + at / 32 / (WIDE / EACH / 4) * 8;
      four[e] = {};
      if (c0 + c < channels && p0 + p < places)
        four[e] = *reinterpret_cast<const Pack<T, EACH>*>(&from[int64_t(c0 + c) * places + p0 + p]);
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int at = e * 256 + threadIdx.x, p = (at % 4 + at / 32 % (WIDE / EACH / 4) * 4) * EACH;
      const int c = at / 4 % 8 + at / 32 / (WIDE / EACH / 4) * 8;
#pragma unroll
      for (int u = 0; u < EACH; ++u) tile[p + u][c] = four[e].x[u];
    }
  } else {
#pragma unroll 8
    for (int e = 0; e < HIGH * WIDE / 256; ++e) {
      const int at = e * 256 + threadIdx.x, p = at % WIDE, c = at / WIDE;
      tile[p][c] = c0 + c < channels && p0 + p < places ? from[int64_t(c0 + c) * places + p0 + p] : T();
    }
  }
  __syncthreads();
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int at = e * 256 + threadIdx.x, c = at % (HIGH / EACH) * EACH, p = at / (HIGH / EACH);
    if (c0 + c < padded && p0 + p < places) {
      Pack<T, EACH> pack;
#pragma unroll
      for (int u = 0; u < EACH; ++u) pack.x[u] = tile[p][c + u];
      *reinterpret_cast<Pack<T, EACH>*>(&to[int64_t(p0 + p) * padded + c0 + c]) = pack;
    }
  }
}
// The same from any steps, where there are few places: filters.
template <class T> __global__ void tma_gather(const T* from, T* to, int64_t all, int channels, int places, int padded,
                                              int64_t pitch, int64_t stride, int64_t step) {
  constexpr int EACH = 16 / sizeof(T);
  const int64_t at = blockIdx.x * int64_t(blockDim.x) + threadIdx.x;
  if (at >= all) return;
  const uint32_t along = padded / EACH, line = at / along, c = uint32_t(at % along) * EACH;
  const T* const of_place = from + line / places * pitch + line % places * stride;
  Pack<T, EACH> pack = {};
#pragma unroll
  for (int u = 0; u < EACH; ++u) if (c + u < channels) pack.x[u] = of_place[(c + u) * step];
  *reinterpret_cast<Pack<T, EACH>*>(&to[at * EACH]) = pack;
}
template <class T> struct TmaTurned {
  T* copy;
  int64_t strides[3];
};
template <class T> TmaTurned<T> tma_filters(const T* p, int64_t rows, int places, int channels, int64_t pitch,
                                            int64_t stride, int64_t step, cudaStream_t stream) {
  const int padded = int(rk::tma_padded<T>(channels));
  const int64_t all = rows * places * padded * int64_t(sizeof(T)) / 16;
  TmaTurned<T> made = {scratch<T>(rows * places * padded, stream), {1, padded, int64_t(padded) * places}};
  const int64_t grid = (all + 255) / 256, r = pitch, s = stride, t = step;
  tma_gather<<<blocks(grid), 256, 0, stream>>>(p, made.copy, all, channels, places, padded, r, s, t);
  return made;
}
template <class T> TmaTurned<T> tma_channels(const T* p, int64_t images, int channels, int places,
                                             cudaStream_t stream) {
  if (places < 32) return tma_filters(p, images, places, channels, int64_t(channels) * places, 1, places, stream);
  const int padded = int(rk::tma_padded<T>(channels)), high = 128 / sizeof(T);
  TmaTurned<T> made = {scratch<T>(images * places * padded, stream), {}};
  const int across = (channels + high - 1) / high, along = (places + 127) / 128;
  const bool whole = places % (16 / sizeof(T)) == 0 && uintptr_t(p) % 16 == 0;
  const int64_t grid = images * across * along;
  tma_turn<<<blocks(grid), 256, 0, stream>>>(p, made.copy, channels, places, padded, across, along, whole);
  return made;
}
"""
