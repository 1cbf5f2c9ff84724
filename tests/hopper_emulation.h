// What `rag_tma.h` and `rag_mma.h` declare for Hopper, for g++ over `cuda_emulation.h`: its copy engine, barriers and
// warpgroup products as PTX documents them, with shared memory swizzled by address bits. Copies arrive at once; who waits
// lets others run. Launches and what asks the device are the headers' own; what moves and multiplies numbers is compiled
// once (`hopper_emulation.cpp`).
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
char* in_shared_memory(uint32_t address, unsigned block);

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
  const EmulatedBarrier& at = barrier_at(bar, resident_block());
  while ((at.phase & 1) == phase) let_others();
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
void load_box(const CUtensorMap& map, uint32_t to, unsigned block, const int (&corner)[5]);
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
void store_box(const CUtensorMap& map, uint32_t from, const int (&corner)[5]);
template <class... C> void tma_store(const CUtensorMap* map, uint32_t from, C... places) {
  const int corner[5] = {int(places)...};
  if (from % 128 || int(sizeof...(C)) != map->rank) std::abort();
  store_box(*map, from, corner);
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

inline void ldmatrix_x4(uint32_t (&r)[4], uint32_t at) {
  static uint32_t rows_of[16][1024];
  uint32_t* const rows = rows_of[resident_block()] + threadIdx.x / 32 * 32;
  const unsigned lane = threadIdx.x % 32;
  rows[lane] = at;
  wait_for_warp();
  for (int i = 0; i < 4; ++i) r[i] = *(uint32_t*)in_shared_memory(rows[i * 8 + lane / 4] + lane % 4 * 4, resident_block());
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
void load_window(const CUtensorMap& map, uint32_t to, uint32_t bar, uint32_t mask, const int* places, int count);
template <class... C>
void tma_load_window_all(const CUtensorMap* map, uint32_t to, uint32_t bar, uint32_t mask, C... places) {
  const int all[] = {int(places)...};
  load_window(*map, to, bar, mask, all, sizeof...(C));
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
// Of numbers of T, whose lanes lie side by side in either factor or do not. With the left factor in registers: a0 is in
// row g and begins with the first terms of lane q, two of sixteen bits or one of TF32; a1 is eight rows and a2 half the
// terms further on.
template <class T, bool LANES_LEFT, bool LANES_RIGHT> void wgmma(float* sums, int n, uint64_t a, uint64_t b, int more);
template <class T, bool LANES_RIGHT>
void wgmma_registers(float* sums, int n, const uint32_t (&a)[4], uint64_t b, int more);
inline uint32_t shared_word(uint32_t at) { return *(uint32_t*)in_shared_memory(at, resident_block()); }
#define RK_EMULATE(NAME, T)                                                                                          \
  template <int L = 0, int R = 0, int N> void NAME(float (&d)[N], uint64_t left, uint64_t right, int more = 1) {       \
    wgmma<T, L, R>(d, N, left, right, more);                                                                          \
  }                                                                                                                   \
  template <int R = 0, int N> void NAME(float (&d)[N], const uint32_t (&left)[4], uint64_t right, int more = 1) {      \
    wgmma_registers<T, R>(d, N, left, right, more);                                                                   \
  }                                                                                                                   \
  template <int L, int R, int N> void NAME(float (&d)[N], const uint32_t (&left)[4], uint64_t right, int more = 1) {   \
    wgmma_registers<T, R>(d, N, left, right, more);                                                                   \
  }
RK_EMULATE(wgmma_bf16, bf16)
RK_EMULATE(wgmma_f16, f16)
RK_EMULATE(wgmma_tf32, float)

}  // namespace rk

// mma.sync m16n8k16 on numbers of sixteen bits, two in a register.
void emulate_multiply_bf16(float* sums, const unsigned (&a)[4], const unsigned (&b)[2]);
void emulate_multiply_f16(float* sums, const unsigned (&a)[4], const unsigned (&b)[2]);
namespace attend {
inline void multiply(rk::bf16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulate_multiply_bf16(c, a, {b0, b1});
}
inline void multiply(rk::f16, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  emulate_multiply_f16(c, a, {b0, b1});
}
}  // namespace attend

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
