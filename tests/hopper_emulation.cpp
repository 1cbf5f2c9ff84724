// What `cuda_emulation.h` and `hopper_emulation.h` declare of tensor cores and of the copy engine.
#include "cuda_emulation.h"
#include "rag_kernel.h"

#include "hopper_emulation.h"

namespace rk {

char* in_shared_memory(uint32_t address, unsigned block) {
  for (size_t i = 0; i < shared_arrays.size(); ++i)
    if (address >= address_of(i) && address < address_of(i) + shared_arrays[i].bytes)
      return shared_arrays[i].base + block * shared_arrays[i].bytes + (address - address_of(i));
  std::abort();
}
static uint32_t swizzled(uint32_t address, int line) {  // by 0: as it is
  return !line ? address : address ^ ((address >> 7 & (line / 16 - 1)) << 4);
}
// The array of shared memory that an address is of, looked up once for many addresses of it.
struct OneArray {
  char* base;
  uint32_t begin, bytes;
  OneArray(uint32_t address, unsigned block) {
    for (size_t i = 0; i < shared_arrays.size(); ++i) {
      begin = address_of(i), bytes = shared_arrays[i].bytes, base = shared_arrays[i].base + block * size_t(bytes);
      if (address - begin < bytes) return;
    }
    std::abort();
  }
  char* at(uint32_t address) const {
    if (address - begin >= bytes) std::abort();
    return base + (address - begin);
  }
};
static void put(char* place, const char* from, int bytes, bool rounds) {
  if (!from) std::memset(place, 0, bytes);
  else if (bytes == 2) std::memcpy(place, from, 2);
  else std::memcpy(place, from, bytes);
  if (rounds && from) *(uint32_t*)place = (*(uint32_t*)place + 0x1000u) & 0xffffe000u;
}

void load_box(const CUtensorMap& map, uint32_t to, unsigned block, const int (&corner)[5]) {
  if (map.swizzle ? to % 1024 && map.box[1] >= 8 : to % 128 || corner[0] * map.bytes % 16) std::abort();
  const OneArray array(to, block);
  int lines = 1;
  for (int d = 1; d < map.rank; ++d) lines *= map.box[d];
  for (int line = 0; line < lines; ++line) {
    int64_t offset = corner[0];
    bool inside = true;
    for (int d = 1, rest = line; d < map.rank; rest /= map.box[d], ++d) {
      const int64_t at = int64_t(corner[d]) + rest % map.box[d];
      inside = inside && at >= 0 && at < map.sizes[d], offset += at * map.strides[d];
    }
    for (int e = 0; e < map.box[0]; ++e) {
      const int64_t first = int64_t(corner[0]) + e;
      const char* const from = inside && first >= 0 && first < map.sizes[0] ? map.from + (offset + e) * map.bytes : nullptr;
      put(array.at(swizzled(to + (line * map.box[0] + e) * map.bytes, map.swizzle)), from, map.bytes, map.rounds);
    }
  }
}
void store_box(const CUtensorMap& map, uint32_t from, const int (&corner)[5]) {
  const OneArray array(from, resident_block());
  int elements = 1;
  for (int d = 0; d < map.rank; ++d) elements *= map.box[d];
  for (int e = 0; e < elements; ++e) {
    int64_t offset = 0;
    bool inside = true;
    for (int d = 0, rest = e; d < map.rank; rest /= map.box[d], ++d) {
      const int64_t at = int64_t(corner[d]) + rest % map.box[d];
      inside = inside && at >= 0 && at < map.sizes[d], offset += at * map.strides[d];
    }
    const char* const place = array.at(swizzled(from + e * map.bytes, map.swizzle));
    if (inside) std::memcpy(const_cast<char*>(map.from) + offset * map.bytes, place, map.bytes);
  }
}
void load_window(const CUtensorMap& map, uint32_t to, uint32_t bar, uint32_t mask, const int* all, int count) {
  const int axes = map.rank - 2;
  if (count != map.rank + axes) std::abort();
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
    for (unsigned rank = 0; rank < cluster_blocks; ++rank) {
      if (!(mask >> rank & 1)) continue;
      const OneArray array(to, block_beside(rank));
      for (int e = 0; e < map.box[0]; ++e) {
        const char* const from = inside && at[0] + e < map.sizes[0] ? map.from + (offset + at[0] + e) * map.bytes : nullptr;
        put(array.at(swizzled(to + pixel * line + e * map.bytes, line)), from, map.bytes, map.rounds);
      }
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

static float number_at(const char* p, const bf16*) { return *(const bf16*)p; }
static float number_at(const char* p, const f16*) { return *(const f16*)p; }
static float number_at(const char* p, const float*) { return __uint_as_float(*(const uint32_t*)p & 0xffffe000u); }
// A factor in shared memory, by its descriptor.
template <class T, bool LANES> struct Factor {
  uint32_t at, leading, stride;
  int line;
  OneArray array;
  explicit Factor(uint64_t from)
      : at((from & 0x3fff) << 4), leading((from >> 16 & 0x3fff) << 4), stride((from >> 32 & 0x3fff) << 4),
        line(from >> 62 ? 256 >> (from >> 62) : 0), array(at, resident_block()) {}
  template <int TERMS> void read(int lane, float (&terms)[TERMS]) const {
    for (int term = 0; term < TERMS; ++term) {
      const uint32_t place = term * sizeof(T);
      const uint32_t offset = !line   ? lane / 8 * stride + lane % 8 * 16 + place / 16 * leading + place % 16
                              : LANES ? lane / 64 * leading + term / 8 * stride + term % 8 * 128 + lane % 64 * sizeof(T)
                                      : lane / 8 * stride + lane % 8 * line + place;
      terms[term] = number_at(array.at(swizzled(at + offset, line)), (const T*)nullptr);
    }
  }
};
// Tensor cores cut off what a sum has no room for.
static float cut_off(double sum) {
  const float nearest = float(sum);
  return std::fabs(double(nearest)) > std::fabs(sum) ? std::nextafterf(nearest, 0.0f) : nearest;
}
// Sums of a lane: two rows of the left factor, and of the right one two lanes of each eight.
template <class T, bool LANES, int TERMS>
static void multiplied(float* sums, int n, const float (&left)[2][TERMS], uint64_t b, int more) {
  const Factor<T, LANES> factor(b);
  for (int i = 0; i < n; i += i % 2 ? 3 : 1) {
    float right[TERMS];
    factor.read(i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2, right);
    for (int row = 0; row < 2; ++row) {
      double sum = more ? sums[i + 2 * row] : 0;
      for (int k = 0; k < TERMS; ++k) sum += double(left[row][k]) * right[k];
      sums[i + 2 * row] = cut_off(sum);
    }
  }
}
template <class T, bool LANES_LEFT, bool LANES_RIGHT> void wgmma(float* sums, int n, uint64_t a, uint64_t b, int more) {
  const Factor<T, LANES_LEFT> factor(a);
  float left[2][32 / sizeof(T)];
  for (int row = 0; row < 2; ++row) factor.read(threadIdx.x % 128 / 32 * 16 + threadIdx.x % 32 / 4 + row * 8, left[row]);
  multiplied<T, LANES_RIGHT>(sums, n, left, b, more);
}
template <class T, bool LANES_RIGHT>
void wgmma_registers(float* sums, int n, const uint32_t (&a)[4], uint64_t b, int more) {
  static uint32_t all_a[16][1024][4];
  constexpr unsigned terms = 32 / sizeof(T), each = 4 / sizeof(T);
  auto& of_block = all_a[resident_block()];
  const unsigned me = threadIdx.x, warp = me / 32 * 32, g = me % 32 / 4;
  for (int i = 0; i < 4; ++i) of_block[me][i] = a[i];
  group_sync<128>(0);
  float left[2][terms];
  for (int row = 0; row < 2; ++row)
    for (unsigned k = 0; k < terms; ++k) {
      const uint32_t& word = of_block[warp + g * 4 + k % (terms / 2) / each][row + k / (terms / 2) * 2];
      left[row][k] = number_at((const char*)&word + k % each * sizeof(T), (const T*)nullptr);
    }
  multiplied<T, LANES_RIGHT>(sums, n, left, b, more);
  group_sync<128>(0);
}
#define RK_MULTIPLIES(T, L, R) template void wgmma<T, L, R>(float*, int, uint64_t, uint64_t, int);
#define RK_MULTIPLIES_REGISTERS(T, R) template void wgmma_registers<T, R>(float*, int, const uint32_t (&)[4], uint64_t, int);
#define RK_MULTIPLIES_SIXTEEN(T)                                                                 \
  RK_MULTIPLIES(T, 0, 0) RK_MULTIPLIES(T, 0, 1) RK_MULTIPLIES(T, 1, 0) RK_MULTIPLIES(T, 1, 1) \
  RK_MULTIPLIES_REGISTERS(T, 0) RK_MULTIPLIES_REGISTERS(T, 1)
RK_MULTIPLIES_SIXTEEN(bf16)
RK_MULTIPLIES_SIXTEEN(f16)
RK_MULTIPLIES(float, 0, 0)
RK_MULTIPLIES_REGISTERS(float, 0)

}  // namespace rk

// mma.sync, with the layout of fragments that PTX documents: every thread shows its part, waits, and sums what its
// results need.
void emulate_multiply_tf32(float* sums, const unsigned (&a)[4], const unsigned (&b)[2]) {
  static float all_a[1024][4], all_b[1024][2];
  const unsigned me = threadIdx.x, warp = me / 32 * 32, g = me % 32 / 4, q = me % 4;
  for (int i = 0; i < 4; ++i) all_a[me][i] = __uint_as_float(a[i] & 0xffffe000u);
  for (int i = 0; i < 2; ++i) all_b[me][i] = __uint_as_float(b[i] & 0xffffe000u);
  wait_for_warp();
  for (int i = 0; i < 4; ++i)
    for (unsigned k = 0; k < 8; ++k) {  // a0: row g, a1: row g + 8; a2 and a3 four terms further on
      const float left = all_a[warp + g * 4 + k % 4][i / 2 + k / 4 * 2];
      sums[i] += left * all_b[warp + (q * 2 + i % 2) * 4 + k % 4][k / 4];
    }
  wait_for_warp();
}
template <class T> static void emulate_multiply_16(float* sums, const unsigned (&a)[4], const unsigned (&b)[2]) {
  static float all_a[1024][4][2], all_b[1024][2][2];
  const unsigned me = threadIdx.x, warp = me / 32 * 32, g = me % 32 / 4, q = me % 4;
  const auto show = [](float (&shown)[2], unsigned both) {
    for (int i = 0; i < 2; ++i) shown[i] = rk::number_at((const char*)&both + 2 * i, (const T*)nullptr);
  };
  for (int i = 0; i < 4; ++i) show(all_a[me][i], a[i]);
  for (int i = 0; i < 2; ++i) show(all_b[me][i], b[i]);
  wait_for_warp();
  for (int i = 0; i < 4; ++i)
    for (unsigned k = 0; k < 16; ++k) {  // a0: row g, a1: row g + 8; a2 and a3 eight terms further on
      const float left = all_a[warp + g * 4 + k % 8 / 2][i / 2 + k / 8 * 2][k % 2];
      sums[i] += left * all_b[warp + (q * 2 + i % 2) * 4 + k % 8 / 2][k / 8][k % 2];
    }
  wait_for_warp();
}
void emulate_multiply_bf16(float* sums, const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulate_multiply_16<rk::bf16>(sums, a, b);
}
void emulate_multiply_f16(float* sums, const unsigned (&a)[4], const unsigned (&b)[2]) {
  emulate_multiply_16<rk::f16>(sums, a, b);
}
