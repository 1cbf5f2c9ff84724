// What `rag_tma.h` and `rag_mma.h` declare for Hopper, for g++ over `cuda_emulation.h`: its copy engine, barriers and
// warpgroup products as PTX documents them, with shared memory swizzled by address bits. Copies arrive at once; who waits
// lets others run. Launches and what asks the device are the headers' own.
#pragma once
#include "cuda_emulation.h"

#define RK_EMULATED
#define RK_ON_HOPPER
#define __grid_constant__

struct CUtensorMap {
  const char* from;
  int bytes, rank;
  int64_t sizes[5], strides[5];
  int box[5];
  bool rounds;
  int swizzle;
  int lower[3], upper[3], every[3], pixels;  // of a window
};
enum CUtensorMapDataType {
  CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
  CU_TENSOR_MAP_DATA_TYPE_TFLOAT32
};

namespace rk {

// Addresses in shared memory: arrays of all blocks lie in one, those of a block have the same addresses in each.
struct SharedArray { char* base; size_t bytes; };
inline std::vector<SharedArray> shared_arrays;
inline uint32_t address_of(size_t index) { return shared_arrays[index].bytes > (64 << 10) ? 0 : 0x100000 * (index + 1); }
template <class T, size_t N> uint32_t tma_address(T (&array)[N]) {
  char* const base = (char*)&array - resident_block() * sizeof array;
  size_t index = 0;
  while (index < shared_arrays.size() && shared_arrays[index].base != base) ++index;
  if (index == shared_arrays.size()) shared_arrays.push_back({base, sizeof array});
  return address_of(index);
}
inline char* in_shared_memory(uint32_t address, unsigned block) {
  for (size_t i = 0; i < shared_arrays.size(); ++i)
    if (address >= address_of(i) && address < address_of(i) + shared_arrays[i].bytes)
      return shared_arrays[i].base + block * shared_arrays[i].bytes + (address - address_of(i));
  std::abort();
}
inline char* swizzled(uint32_t address, unsigned block, int line = 128) {  // by 0: as it is
  return in_shared_memory(!line ? address : address ^ ((address >> 7 & (line / 16 - 1)) << 4), block);
}

struct EmulatedBarrier {
  uint8_t arrivals, pending;
  uint16_t phase;
  int32_t bytes;
  void settle() {
    if (!pending && !bytes) ++phase, pending = arrivals;
  }
  void arrive() { --pending, settle(); }
};
inline EmulatedBarrier& barrier_at(uint32_t bar, unsigned block) { return *(EmulatedBarrier*)in_shared_memory(bar, block); }
inline void mbarrier_init(uint32_t bar, int n) { barrier_at(bar, resident_block()) = {uint8_t(n), uint8_t(n), 0, 0}; }
inline void mbarrier_publish() {}
inline void mbarrier_wait(uint32_t bar, int phase) {
  while ((barrier_at(bar, resident_block()).phase & 1) == phase) let_others();
}
inline void mbarrier_expect(uint32_t bar, int bytes) {
  EmulatedBarrier& at = barrier_at(bar, resident_block());
  at.bytes += bytes, at.arrive();
}
inline void mbarrier_arrive(uint32_t bar) { barrier_at(bar, resident_block()).arrive(); }
inline unsigned block_beside(unsigned rank) { return resident_block() / cluster_blocks * cluster_blocks + rank; }
inline void mbarrier_arrive_at(uint32_t bar, uint32_t rank) { barrier_at(bar, block_beside(rank)).arrive(); }
inline void cluster_sync() { cluster_barrier(); }
inline uint32_t cluster_rank() { return blockIdx.x % cluster_blocks; }
inline void tma_publish() {}

template <int RANK, class T>
CUtensorMap tma_map(const T* p, const int64_t (&sizes)[RANK], const int64_t (&strides)[RANK], const int (&box)[RANK],
                    int swizzle = 128, CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32) {
  constexpr int bytes = sizeof(T);
  CUtensorMap map = {(const char*)p, bytes, RANK, {}, {}, {}, type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32};
  for (int d = 0; d < RANK; ++d) map.sizes[d] = sizes[d], map.strides[d] = strides[d], map.box[d] = box[d];
  map.swizzle = swizzle;  // what the driver would refuse, or more:
  if ((swizzle ? box[0] * bytes != swizzle : box[0] * bytes % 16) || swizzle > 128 || strides[0] != 1) std::abort();
  for (int d = 0; d < RANK; ++d)
    if (box[d] > 256 || (d && strides[d] * bytes % 16) || sizes[d] <= 0) std::abort();
  return map;
}
template <class T> int64_t tma_padded(int64_t elements);
inline void tma_prefetch(const CUtensorMap*) {}
inline void load_box(const CUtensorMap& map, uint32_t to, unsigned block, const int (&corner)[5]) {
  if (map.swizzle ? to % 1024 && map.box[1] >= 8 : to % 128 || corner[0] * map.bytes % 16) std::abort();
  int lines = 1;
  for (int d = 1; d < map.rank; ++d) lines *= map.box[d];
  for (int line = 0; line < lines; ++line)
    for (int e = 0; e < map.box[0]; ++e) {
      int64_t offset = int64_t(corner[0]) + e;
      bool inside = offset >= 0 && offset < map.sizes[0];
      for (int d = 1, rest = line; d < map.rank; rest /= map.box[d], ++d) {
        const int64_t at = int64_t(corner[d]) + rest % map.box[d];
        inside = inside && at >= 0 && at < map.sizes[d], offset += at * map.strides[d];
      }
      char* const place = swizzled(to + (line * map.box[0] + e) * map.bytes, block, map.swizzle);
      if (inside) std::memcpy(place, map.from + offset * map.bytes, map.bytes);
      else std::memset(place, 0, map.bytes);
      if (inside && map.rounds) *(uint32_t*)place = (*(uint32_t*)place + 0x1000u) & 0xffffe000u;
    }
}
template <class... C> void tma_load_all(const CUtensorMap* map, uint32_t to, uint32_t bar, uint32_t mask, C... places) {
  const int corner[5] = {int(places)...};
  int bytes = map->bytes;
  for (int d = 0; d < map->rank; ++d) bytes *= map->box[d];
  for (unsigned rank = 0; rank < cluster_blocks; ++rank)
    if (mask >> rank & 1) {
      load_box(*map, to, block_beside(rank), corner);
      EmulatedBarrier& at = barrier_at(bar, block_beside(rank));
      at.bytes -= bytes, at.settle();
    }
}
template <class... C> void tma_load(const CUtensorMap* map, uint32_t to, uint32_t bar, C... places) {
  tma_load_all(map, to, bar, 1u << cluster_rank(), places...);
}

// To a tensor, but for what lies outside of it.
template <class... C> void tma_store(const CUtensorMap* map, uint32_t from, C... places) {
  const int corner[5] = {int(places)...};
  if (from % 128 || int(sizeof...(C)) != map->rank) std::abort();
  int elements = 1;
  for (int d = 0; d < map->rank; ++d) elements *= map->box[d];
  for (int e = 0; e < elements; ++e) {
    int64_t offset = 0;
    bool inside = true;
    for (int d = 0, rest = e; d < map->rank; rest /= map->box[d], ++d) {
      const int64_t at = int64_t(corner[d]) + rest % map->box[d];
      inside = inside && at >= 0 && at < map->sizes[d], offset += at * map->strides[d];
    }
    const char* const place = swizzled(from + e * map->bytes, resident_block(), map->swizzle);
    if (inside) std::memcpy(const_cast<char*>(map->from) + offset * map->bytes, place, map->bytes);
  }
}
inline void store_commit() {}
template <int LATER> void store_wait_read() {}
template <int LATER> void store_wait() {}
inline void stmatrix_x4(uint32_t to, const uint32_t (&r)[4]) {  // lane 4 g + t has row g and numbers 2 t, 2 t + 1
  static uint32_t rows_of[16][1024];
  uint32_t* const rows = rows_of[resident_block()] + threadIdx.x / 32 * 32;
  const unsigned lane = threadIdx.x % 32;
  rows[lane] = to;
  wait_for_warp();
  for (int i = 0; i < 4; ++i) *(uint32_t*)in_shared_memory(rows[i * 8 + lane / 4] + lane % 4 * 4, resident_block()) = r[i];
  wait_for_warp();
}

inline void bulk_load(uint32_t to, const void* from, int bytes, uint32_t bar) {
  if (to % 16 || uintptr_t(from) % 16 || bytes % 16) std::abort();
  std::memcpy(in_shared_memory(to, resident_block()), from, bytes);
  EmulatedBarrier& at = barrier_at(bar, resident_block());
  at.bytes -= bytes, at.settle();
}
// Pixels at which a window begins, one after the other: along a row, down the rows, through the images.
template <int RANK, class T>
CUtensorMap tma_window_map(const T* p, const int64_t (&sizes)[RANK], const int (&lower)[RANK - 2],
                           const int64_t (&upper)[RANK - 2], const int (&every)[RANK - 2], int channels, int pixels,
                           CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32) {
  constexpr int bytes = sizeof(T);
  CUtensorMap map = {(const char*)p, bytes, RANK, {}, {}, {channels}, type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32, 128};
  map.pixels = pixels;
  const int bits[] = {0, 15, 7, 4}, corner = 1 << bits[RANK - 2];
  if (channels * bytes > 128 || pixels > 1024) std::abort();  // what the driver would refuse
  for (int d = 0; d < RANK; ++d) {
    map.sizes[d] = sizes[d];
    map.strides[d] = d == 0 ? 1 : d == 1 ? tma_padded<T>(sizes[0]) : map.strides[d - 1] * sizes[d - 1];
    if (d >= RANK - 2) continue;
    map.lower[d] = lower[d], map.upper[d] = int(upper[d]), map.every[d] = every[d];
    if (lower[d] < -corner || lower[d] >= corner || upper[d] < -corner || upper[d] >= corner) std::abort();
    if (every[d] < 1 || every[d] > 8 || sizes[d + 1] + upper[d] - lower[d] <= 0) std::abort();
  }
  return map;
}
template <class... C>
void tma_load_window_all(const CUtensorMap* from, uint32_t to, uint32_t bar, uint32_t mask, C... places) {
  const CUtensorMap& map = *from;
  const int all[] = {int(places)...}, axes = map.rank - 2;
  if (int(sizeof...(C)) != map.rank + axes) std::abort();
  int at[5];
  for (int d = 0; d < map.rank; ++d) at[d] = all[d];
  for (int d = 0; d < axes; ++d)  // offsets are unsigned and short, and a copy begins at one of the windows
    if (all[map.rank + d] < 0 || all[map.rank + d] >= 1 << 16 / axes || (at[d + 1] - map.lower[d]) % map.every[d])
      std::abort();
  const int line = map.box[0] * map.bytes;
  for (int pixel = 0; pixel < map.pixels; ++pixel) {
    int64_t offset = at[map.rank - 1] * map.strides[map.rank - 1];
    bool inside = at[map.rank - 1] >= 0 && at[map.rank - 1] < map.sizes[map.rank - 1];
    for (int d = 1; d <= axes; ++d) {
      const int64_t place = int64_t(at[d]) + all[map.rank + d - 1];
      inside = inside && place >= 0 && place < map.sizes[d], offset += place * map.strides[d];
    }
    for (unsigned rank = 0; rank < cluster_blocks; ++rank)
      for (int e = 0; e < map.box[0] && mask >> rank & 1; ++e) {
        char* const place = swizzled(to + pixel * line + e * map.bytes, block_beside(rank), line);
        if (inside && at[0] + e < map.sizes[0]) std::memcpy(place, map.from + (offset + at[0] + e) * map.bytes, map.bytes);
        else std::memset(place, 0, map.bytes);
        if (map.rounds) *(uint32_t*)place = (*(uint32_t*)place + 0x1000u) & 0xffffe000u;
      }
    for (int d = 1; d < map.rank; ++d) {
      if (d > axes) ++at[d];
      else if ((at[d] += map.every[d - 1]) > map.sizes[d] - 1 + map.upper[d - 1]) at[d] = map.lower[d - 1];
      else break;
    }
  }
  for (unsigned rank = 0; rank < cluster_blocks; ++rank)
    if (mask >> rank & 1) {
      EmulatedBarrier& arrived = barrier_at(bar, block_beside(rank));
      arrived.bytes -= line * map.pixels, arrived.settle();
    }
}
template <class... C> void tma_load_window(const CUtensorMap* map, uint32_t to, uint32_t bar, C... places) {
  tma_load_window_all(map, to, bar, 1u << cluster_rank(), places...);
}

template <int COUNT> void more_registers() {}
template <int COUNT> void fewer_registers() {}
template <int THREADS> Barrier& named_barrier(int number) {
  static std::vector<Barrier> of_blocks(16 * 16, Barrier{THREADS});
  return THREADS == 128 ? barriers->groups[in_block() / 128] : of_blocks[resident_block() * 16 + number];
}
template <int THREADS> void group_sync(int number) { named_barrier<THREADS>(number).wait(); }
template <int THREADS> void group_arrive(int number) {
  Barrier& at = named_barrier<THREADS>(number);
  if (++at.here == at.expected) at.here = 0, ++at.round;
}
template <class T> T* cluster_pointer(T* p, uint32_t rank) {
  return p + (int(block_beside(rank)) - int(resident_block())) * int(sizeof shared_of[0] / sizeof *p);
}
inline void wgmma_fence() { group_sync<128>(0); }
inline void wgmma_commit() {}
template <int LATER> void wgmma_wait() { group_sync<128>(0); }
template <int N> void wgmma_hold(float (&)[N]) {}
inline uint64_t wgmma_descriptor(uint32_t at, uint32_t leading, uint32_t stride, int line = 128) {
  const uint64_t swizzle = line == 128 ? 1 : line == 64 ? 2 : line == 32 ? 3 : 0;
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | swizzle << 62;
}
inline float number_at(const char* p, const rk::bf16*) { return *(const rk::bf16*)p; }
inline float number_at(const char* p, const rk::f16*) { return *(const rk::f16*)p; }
inline float number_at(const char* p, const float*) { return __uint_as_float(*(const uint32_t*)p & 0xffffe000u); }
// One number of a factor: its lane and its term, by the descriptor.
template <class T, bool LANES> float factor_at(uint64_t from, int lane, int term) {
  const uint32_t at = (from & 0x3fff) << 4, leading = (from >> 16 & 0x3fff) << 4, stride = (from >> 32 & 0x3fff) << 4;
  const int line = from >> 62 ? 256 >> (from >> 62) : 0;
  if (!line) {
    const uint32_t place = term * sizeof(T), offset = lane / 8 * stride + lane % 8 * 16 + place / 16 * leading + place % 16;
    return number_at(in_shared_memory(at + offset, resident_block()), (const T*)nullptr);
  }
  const uint32_t offset = LANES ? lane / 64 * leading + term / 8 * stride + term % 8 * 128 + lane % 64 * sizeof(T)
                                : lane / 8 * stride + lane % 8 * line + term * sizeof(T);
  return number_at(swizzled(at + offset, resident_block(), line), (const T*)nullptr);
}
// Tensor cores cut off what a sum has no room for.
inline float cut_off(double sum) {
  const float nearest = float(sum);
  return std::fabs(double(nearest)) > std::fabs(sum) ? std::nextafterf(nearest, 0.0f) : nearest;
}
template <class T, int LANES_LEFT, int LANES_RIGHT, int N> void wgmma(float (&sums)[N], uint64_t a, uint64_t b, int more) {
  constexpr int terms = 32 / sizeof(T);
  const int lane = threadIdx.x % 32, top = threadIdx.x % 128 / 32 * 16 + lane / 4;
  float left[2][terms];
  for (int k = 0; k < 2 * terms; ++k) left[k / terms][k % terms] = factor_at<T, LANES_LEFT>(a, top + k / terms * 8, k % terms);
  for (int i = 0; i < N; ++i) {
    double sum = more ? sums[i] : 0;
    for (int k = 0; k < terms; ++k)
      sum += double(left[i / 2 % 2][k]) * factor_at<T, LANES_RIGHT>(b, i / 4 * 8 + lane % 4 * 2 + i % 2, k);
    sums[i] = cut_off(sum);
  }
}
inline uint32_t shared_word(uint32_t at) { return *(uint32_t*)in_shared_memory(at, resident_block()); }
// The left factor in registers: a0 is in row g and begins with the first terms of lane q, two of sixteen bits or one of
// TF32; a1 is eight rows and a2 half the terms further on.
inline float left_at(uint32_t word, int, const float*) { return __uint_as_float(word & 0xffffe000u); }
template <class T> float left_at(uint32_t word, int which, const T*) { return number_at((const char*)&word + 2 * which, (const T*)nullptr); }
template <class T, int LANES_RIGHT, int N> void wgmma_registers(float (&sums)[N], const uint32_t (&a)[4], uint64_t b, int more) {
  static uint32_t all_a[16][1024][4];
  constexpr unsigned each = 4 / sizeof(T), half = 4 * each;
  auto& of_block = all_a[resident_block()];
  const unsigned me = threadIdx.x, warp = me / 32 * 32, g = me % 32 / 4;
  for (int i = 0; i < 4; ++i) of_block[me][i] = a[i];
  group_sync<128>(0);
  for (int i = 0; i < N; ++i) {
    double sum = more ? sums[i] : 0;
    for (unsigned k = 0; k < 2 * half; ++k) {
      const uint32_t word = of_block[warp + g * 4 + k % half / each][i / 2 % 2 + k / half * 2];
      const float left = left_at(word, k % each, (const T*)nullptr);
      sum += double(left) * factor_at<T, LANES_RIGHT>(b, i / 4 * 8 + me % 4 * 2 + i % 2, k);
    }
    sums[i] = cut_off(sum);
  }
  group_sync<128>(0);
}

#define RK_EMULATE(NAME, T)                                                                                          \
  template <int L = 0, int R = 0, int N> void NAME(float (&d)[N], uint64_t left, uint64_t right, int more = 1) {       \
    wgmma<T, L, R>(d, left, right, more);                                                                             \
  }                                                                                                                   \
  template <int R = 0, int N> void NAME(float (&d)[N], const uint32_t (&left)[4], uint64_t right, int more = 1) {      \
    wgmma_registers<T, R>(d, left, right, more);                                                                      \
  }                                                                                                                   \
  template <int L, int R, int N> void NAME(float (&d)[N], const uint32_t (&left)[4], uint64_t right, int more = 1) {   \
    wgmma_registers<T, R>(d, left, right, more);                                                                      \
  }
RK_EMULATE(wgmma_bf16, bf16)
RK_EMULATE(wgmma_f16, f16)
RK_EMULATE(wgmma_tf32, float)

}  // namespace rk

// mma.sync m16n8k16 on numbers of sixteen bits, two in a register.
template <class T> void emulate_multiply_16(float* sums, const unsigned (&a)[4], const unsigned (&b)[2]) {
  static unsigned all_a[1024][4], all_b[1024][2];
  const unsigned me = threadIdx.x, warp = me / 32 * 32, g = me % 32 / 4, q = me % 4;
  for (int i = 0; i < 4; ++i) all_a[me][i] = a[i];
  for (int i = 0; i < 2; ++i) all_b[me][i] = b[i];
  wait_for_warp();
  const auto half = [](unsigned both, int which) { return rk::number_at((const char*)&both + 2 * which, (const T*)nullptr); };
  for (int i = 0; i < 4; ++i)
    for (unsigned k = 0; k < 16; ++k) {  // a0: row g, a1: row g + 8; a2 and a3 eight terms further on
      const float left = half(all_a[warp + g * 4 + k % 8 / 2][i / 2 + k / 8 * 2], k % 2);
      sums[i] += left * half(all_b[warp + (q * 2 + i % 2) * 4 + k % 8 / 2][k / 8], k % 2);
    }
  wait_for_warp();
}
inline void emulate_multiply_bf16(float* s, const unsigned (&a)[4], const unsigned (&b)[2]) { emulate_multiply_16<rk::bf16>(s, a, b); }
inline void emulate_multiply_f16(float* s, const unsigned (&a)[4], const unsigned (&b)[2]) { emulate_multiply_16<rk::f16>(s, a, b); }

// Of rows that blocks share: a counter, and what is sent to another block, whose memory lies in the same array.
inline void begin_count(uint64_t* counter) { *(rk::EmulatedBarrier*)counter = {1, 1, 0, 0}; }
inline void await_bytes(uint64_t* counter, int bytes) { ((rk::EmulatedBarrier*)counter)->bytes += bytes; }
inline void close_count(uint64_t* counter) { ((rk::EmulatedBarrier*)counter)->arrive(); }
inline void await_count(uint64_t* counter, int odd) {
  while ((((rk::EmulatedBarrier*)counter)->phase & 1) == odd) let_others();
}
template <int MEETINGS, class T> void put_beside(T* here, uint64_t* counter, int block, T v) {
  const int away = block - int(blockIdx.x % cluster_blocks);
  here[away * (MEETINGS > 2 ? 16 : 8) * MEETINGS] = v;
  rk::EmulatedBarrier& at = ((rk::EmulatedBarrier*)counter)[away * MEETINGS];
  at.bytes -= int(sizeof(T)), at.settle();
}
