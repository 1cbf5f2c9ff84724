"""What the host does for CUDA products on Hopper: parts of a depth, and copies that the copy engine can read."""

HOST = """
// How many parts the depth of a tile is cut into: of at least four steps, none empty. Adding them up takes as long as
// so many steps; all tiles run in so many `turns` (none: there is no room).
template <class Turns> int tma_parts(int64_t steps, double adding, int64_t most, Turns turns) {
  double least = 1e30;
  int best = 1;
  for (int64_t parts = 1; parts <= most; ++parts) {
    const int64_t chunk = (steps + parts - 1) / parts;
    if (parts > 1 && (parts * 4 > steps || (steps + chunk - 1) / chunk != parts || !turns(parts))) continue;
    const double time = double(turns(parts)) * double(chunk) + (parts > 1 ? adding : 0);
    if (time < 0.95 * least) least = time, best = int(parts);
  }
  return best;
}
// Adds up many parts, each so many times four sums, into the first one; of WARPS warps each has every WARPS-th part.
template <int WARPS> __global__ void tma_sum(float4* sums, int64_t step, int parts) {
  __shared__ float4 of_warp[WARPS][32];
  const int64_t at = blockIdx.x * int64_t(32) + threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  float4 sum = {};
  if (at < step)
#pragma unroll 8
    for (int p = warp; p < parts; p += WARPS) {
      const float4 one = sums[p * step + at];
      sum.x += one.x, sum.y += one.y, sum.z += one.z, sum.w += one.w;
    }
  of_warp[warp][threadIdx.x % 32] = sum;
  __syncthreads();
  if (warp || at >= step) return;
#pragma unroll
  for (int other = 1; other < WARPS; ++other) {
    const float4 one = of_warp[other][threadIdx.x];
    sum.x += one.x, sum.y += one.y, sum.z += one.z, sum.w += one.w;
  }
  sums[at] = sum;
}
// Where blocks of a cluster, eight at most, have the parts of a tile: of how many blocks how many clusters fit, a byte
// each; and in how many turns all tiles run, which is one where depths are split.
template <class Kernel> int64_t tma_room(Kernel kernel, int threads, int shared) {
  int64_t room = rk::cluster_places(kernel, threads, 1, shared);
  room = room < 255 ? room : 255;
  for (int p = 2; p <= 8; ++p) {
    cudaLaunchAttribute attribute;
    const cudaLaunchConfig_t config = rk::cluster_config(&attribute, dim3(unsigned(p)), threads, p, shared);
    int places = 0;
    if (cudaOccupancyMaxActiveClusters(&places, kernel, &config) == cudaSuccess) room |= int64_t(places) << 8 * (p - 1);
    else cudaGetLastError();
  }
  return room;
}
inline int64_t tma_turns(int64_t tiles, int64_t room, int64_t parts) {
  const int64_t places = room >> 8 * (parts - 1) & 255;
  return parts == 1 ? (tiles + places - 1) / places : int64_t(tiles <= places);
}
inline bool tma_counts(std::initializer_list<int64_t> sizes) {
  bool fits = true;
  for (const int64_t size : sizes) fits = fits && size > 0 && size < (int64_t(1) << 31);
  return fits;
}
// A factor as the copy engine can read it: itself, or a copy whose lines begin at multiples of sixteen bytes.
struct TmaSteps { int64_t sizes[5], strides[5]; };
// A warp copies 1024 numbers of a line, or what there is of them...
template <class T> __global__ void tma_copy(const T* __restrict__ from, T* __restrict__ to, TmaSteps of, int64_t pitch,
    int64_t lines) {
  const int64_t warp = (blockIdx.x * int64_t(blockDim.x) + threadIdx.x) / 32, parts = (of.sizes[0] + 1023) / 1024;
  const int64_t begin = warp % parts * 1024, end = begin + 1024 < of.sizes[0] ? begin + 1024 : of.sizes[0];
  int64_t line = warp / parts;
  if (line >= lines) return;
  to += line * pitch;
  for (int d = 1; d < 5; ++d) from += line % of.sizes[d] * of.strides[d], line /= of.sizes[d];
#pragma unroll 8
  for (int64_t i = begin + threadIdx.x % 32; i < end; i += 32) to[i] = from[i * of.strides[0]];
}
// ... or, where it is lines that lie side by side, a block 32 numbers of 32 lines, through shared memory.
template <class T> __global__ void tma_turn(const T* __restrict__ from, T* __restrict__ to, TmaSteps of,
    int64_t pitch) {
  __shared__ T tile[32][33];
  const int64_t across = (of.sizes[0] + 31) / 32, down = (of.sizes[1] + 31) / 32;
  const int64_t inside = blockIdx.x % across * 32, line = blockIdx.x / across % down * 32;
  const int lane = threadIdx.x % 32;
  int64_t rest = blockIdx.x / across / down;
  to += rest * of.sizes[1] * pitch;
  for (int d = 2; d < 5; ++d) from += rest % of.sizes[d] * of.strides[d], rest /= of.sizes[d];
#pragma unroll
  for (int i = threadIdx.x / 32; i < 32; i += 8)
    if (inside + i < of.sizes[0] && line + lane < of.sizes[1])
      tile[i][lane] = from[(inside + i) * of.strides[0] + (line + lane) * of.strides[1]];
  __syncthreads();
#pragma unroll
  for (int i = threadIdx.x / 32; i < 32; i += 8)
    if (inside + lane < of.sizes[0] && line + i < of.sizes[1]) to[(line + i) * pitch + inside + lane] = tile[lane][i];
}
template <class T, int RANK> struct TmaFactor {
  const T* data;
  T* copy;
  int64_t strides[RANK];
};
template <int RANK, class T> TmaFactor<T, RANK> tma_factor(const T* p, const int64_t (&sizes)[RANK],
    const int64_t (&strides)[RANK], bool reads, cudaStream_t stream) {
  TmaFactor<T, RANK> factor = {p, nullptr, {}};
  TmaSteps of = {{1, 1, 1, 1, 1}, {}};
  int64_t lines = 1;
  for (int d = 0; d < RANK; ++d) of.sizes[d] = sizes[d], of.strides[d] = factor.strides[d] = strides[d];
  for (int d = 1; d < RANK; ++d) lines *= sizes[d];
  if (reads) return factor;
  const int64_t each = 16 / sizeof(T), pitch = (sizes[0] + each - 1) / each * each;
  factor.data = factor.copy = scratch<T>(lines * pitch, stream);
  if (strides[0] != 1 && of.strides[1] == 1) {
    const int64_t across = (of.sizes[0] + 31) / 32, down = (of.sizes[1] + 31) / 32;
    tma_turn<<<blocks(across * down * (lines / of.sizes[1])), 256, 0, stream>>>(p, factor.copy, of, pitch);
  } else {
    const int64_t warps = (of.sizes[0] + 1023) / 1024 * lines;
    tma_copy<<<blocks((warps + 7) / 8), 256, 0, stream>>>(p, factor.copy, of, pitch, lines);
  }
  factor.strides[0] = 1;
  for (int64_t d = 1, step = pitch; d < RANK; step *= sizes[d++]) factor.strides[d] = step;
  return factor;
}
"""
