// rag_mma.h: tensor cores and their loads, for kernels that include it after rag_kernel.h. Only device functions.
//
//   sm_80 and later   cp_async_16, ldmatrix, mma_bf16, mma_f16, mma_tf32, mma_s8, split_tf32
//   sm_90 and later   stmatrix
//   sm_90a alone      wgmma_bf16, wgmma_f16, wgmma_tf32, wgmma_e4m3, and what goes with them
//   sm_100a alone     tcgen05_bf16, tcgen05_f16, and tensor memory, where their sums lie
//
// What a target has not is not declared: RK_ON_HOPPER is defined in device code that has wgmma, RK_ON_BLACKWELL in
// such that has tcgen05. Nothing for sm_100a was run so far: it is compiled, and follows the PTX manual.
// Fragments of mma: lane = 4 g + t (g = lane / 4, t = lane % 4). Sums of 16 x 8: d[0], d[1] are row g, columns 2t and
// 2t + 1; d[2], d[3] are row g + 8. Left of 16 x 16: a[0], a[2] are row g, a[1], a[3] row g + 8, terms 2t, 2t + 1 (and
// + 8 in a[2], a[3]); right: b[0], b[1] are column g, terms 2t, 2t + 1 (and + 8).
#pragma once
#include "rag_kernel.h"
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
#define RK_ON_HOPPER
#endif
#ifdef __CUDA_ARCH_FEAT_SM100_ALL
#define RK_ON_BLACKWELL
#endif
#if RK_DEVICE && defined(__CUDACC__)
namespace rk {

// The address of something in shared memory, as instructions take it.
__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
__device__ __forceinline__ uint32_t shared_word(uint32_t at) {
  uint32_t word;
  asm volatile("ld.shared.b32 %0, [%1];" : "=r"(word) : "r"(at) : "memory");
  return word;
}

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 800
// Sixteen bytes to shared memory behind the caller's back: `bytes` of them from `from`, zeros for the rest.
__device__ __forceinline__ void cp_async_16(uint32_t to, const void* from, int bytes = 16) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void cp_async_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
// All groups but the last LATER are there, for this thread; __syncthreads() makes it so for all.
template <int LATER> __device__ __forceinline__ void cp_async_wait() {
  asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory");
}

// Four matrices of 8 rows of 16 bytes: lane l gives the address of row l % 8 of matrix l / 8. `_trans` transposes each.
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2(uint32_t (&r)[2], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}
__device__ __forceinline__ void ldmatrix_x2_trans(uint32_t (&r)[2], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
               : "=r"(r[0]), "=r"(r[1]) : "r"(at) : "memory");
}

// d += a b, 16 x 8 with 16 terms of sixteen bits, two to a register.
#define RK_MMA_16(NAME, KIND)                                                                                        \
  __device__ __forceinline__ void NAME(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {              \
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32." KIND "." KIND ".f32 "                                      \
                 "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"                                   \
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])                                                    \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));                                \
  }
RK_MMA_16(mma_bf16, "bf16")
RK_MMA_16(mma_f16, "f16")
// 8 terms of TF32, one to a register: a[0] row g, term t; a[1] row g + 8; a[2], a[3] term t + 4. b: terms t and t + 4.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// 32 terms of int8, four to a register: a[0] row g, terms 4t to 4t + 3; a[1] row g + 8; a[2], a[3] 16 terms on.
__device__ __forceinline__ void mma_s8(int (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2]) {
  asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 "
               "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
// x = high + low up to float32's accuracy: low x high, high x low, high x high, added in this order, are a float32
// product. Tensor cores cut off what they add, so begin new sums every 8 to 64 terms and add them up in float32.
__device__ __forceinline__ void split_tf32(float x, uint32_t& high, uint32_t& low) {
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(high) : "f"(x));
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(low) : "f"(x - __uint_as_float(high)));
}
#endif

#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// Four matrices to shared memory, as ldmatrix_x4 takes them from there.
__device__ __forceinline__ void stmatrix_x4(uint32_t to, const uint32_t (&r)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
               :: "r"(to), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
}
#endif

#if !defined(__CUDA_ARCH__) || defined(RK_ON_HOPPER)
// Products of a warpgroup (four warps, all of them): 64 rows; sums d[COUNT] are N = 2 COUNT columns. Thread
// 32 w + 4 g + t has of columns 8 j + 2t, + 1 the rows 16 w + g in d[4 j], d[4 j + 1] and 16 w + g + 8 in d[4 j + 2],
// d[4 j + 3]. Without `more` the sums are overwritten. Order: wgmma_fence, products, wgmma_commit, wgmma_wait<0>.
// N is 16, 32, 64, 128, 192 or 256; another multiple of 16 takes a line RK_WGMMA_COLUMNS(N) at file level.
//
// Factors lie in shared memory, swizzled by 128 bytes as TMA writes them, at multiples of 1024 bytes. A tile of 128
// bytes of terms a row: wgmma_descriptor(address, 1, 1024), the next 16 (TF32 8, fp8 32) terms 32 bytes on. Lanes side
// by side (sixteen bits only, LANES_LEFT or LANES_RIGHT 1): slabs of 64 lanes are `leading` bytes apart, groups of
// eight terms `stride` bytes. `line`: the swizzle, where it is of 64 or 32 bytes; with 0 there is none: eight rows of
// sixteen bytes lie after one another, the next sixteen bytes of terms `leading` bytes on, the next eight rows `stride`.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t at, uint32_t leading, uint32_t stride, int line = 128) {
  const uint64_t swizzle = line == 128 ? 1 : line == 64 ? 2 : line == 32 ? 3 : 0;
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | swizzle << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LATER) : "memory");
}
// Sums are not read or moved across this: before wgmma_fence and after wgmma_wait, where products are still under way.
template <int N> __device__ __forceinline__ void wgmma_hold(float (&d)[N]) {
#pragma unroll
  for (int u = 0; u < N; ++u) asm volatile("" : "+f"(d[u]) :: "memory");
}
// Registers change hands between warpgroups of a block; multiples of 8, from 24 to 240.
template <int COUNT> __device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}

#ifdef __CUDA_ARCH__
#define RK_REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define RK_REGISTERS_16 RK_REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define RK_REGISTERS_24 RK_REGISTERS_16 ", %16, %17, %18, %19, %20, %21, %22, %23"
#define RK_REGISTERS_32 RK_REGISTERS_24 ", %24, %25, %26, %27, %28, %29, %30, %31"
#define RK_REGISTERS_40 RK_REGISTERS_32 ", %32, %33, %34, %35, %36, %37, %38, %39"
#define RK_REGISTERS_48 RK_REGISTERS_40 ", %40, %41, %42, %43, %44, %45, %46, %47"
#define RK_REGISTERS_56 RK_REGISTERS_48 ", %48, %49, %50, %51, %52, %53, %54, %55"
#define RK_REGISTERS_64 RK_REGISTERS_56 ", %56, %57, %58, %59, %60, %61, %62, %63"
#define RK_REGISTERS_72 RK_REGISTERS_64 ", %64, %65, %66, %67, %68, %69, %70, %71"
#define RK_REGISTERS_80 RK_REGISTERS_72 ", %72, %73, %74, %75, %76, %77, %78, %79"
#define RK_REGISTERS_88 RK_REGISTERS_80 ", %80, %81, %82, %83, %84, %85, %86, %87"
#define RK_REGISTERS_96 RK_REGISTERS_88 ", %88, %89, %90, %91, %92, %93, %94, %95"
#define RK_REGISTERS_104 RK_REGISTERS_96 ", %96, %97, %98, %99, %100, %101, %102, %103"
#define RK_REGISTERS_112 RK_REGISTERS_104 ", %104, %105, %106, %107, %108, %109, %110, %111"
#define RK_REGISTERS_120 RK_REGISTERS_112 ", %112, %113, %114, %115, %116, %117, %118, %119"
#define RK_REGISTERS_128 RK_REGISTERS_120 ", %120, %121, %122, %123, %124, %125, %126, %127"
#define RK_FOUR(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RK_EIGHT(d, i) RK_FOUR(d, i), RK_FOUR(d, i + 4)
#define RK_SUMS_8(d) RK_EIGHT(d, 0)
#define RK_SUMS_16(d) RK_SUMS_8(d), RK_EIGHT(d, 8)
#define RK_SUMS_24(d) RK_SUMS_16(d), RK_EIGHT(d, 16)
#define RK_SUMS_32(d) RK_SUMS_24(d), RK_EIGHT(d, 24)
#define RK_SUMS_40(d) RK_SUMS_32(d), RK_EIGHT(d, 32)
#define RK_SUMS_48(d) RK_SUMS_40(d), RK_EIGHT(d, 40)
#define RK_SUMS_56(d) RK_SUMS_48(d), RK_EIGHT(d, 48)
#define RK_SUMS_64(d) RK_SUMS_56(d), RK_EIGHT(d, 56)
#define RK_SUMS_72(d) RK_SUMS_64(d), RK_EIGHT(d, 64)
#define RK_SUMS_80(d) RK_SUMS_72(d), RK_EIGHT(d, 72)
#define RK_SUMS_88(d) RK_SUMS_80(d), RK_EIGHT(d, 80)
#define RK_SUMS_96(d) RK_SUMS_88(d), RK_EIGHT(d, 88)
#define RK_SUMS_104(d) RK_SUMS_96(d), RK_EIGHT(d, 96)
#define RK_SUMS_112(d) RK_SUMS_104(d), RK_EIGHT(d, 104)
#define RK_SUMS_120(d) RK_SUMS_112(d), RK_EIGHT(d, 112)
#define RK_SUMS_128(d) RK_SUMS_120(d), RK_EIGHT(d, 120)
// COUNT floats a thread are N = 2 COUNT columns; L, R, P, X, Y: the places of the factors, the predicate, the layouts.
#define RK_WGMMA_HALF(NAME, KIND, COUNT, N, L, R, P, X, Y)                                                           \
  template <int LANES_LEFT = 0, int LANES_RIGHT = 0>                                                                 \
  __device__ __forceinline__ void NAME(float (&d)[COUNT], uint64_t left, uint64_t right, int more = 1) {             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " P ", 0;\n"                                                        \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." KIND "." KIND " {" RK_REGISTERS_##COUNT "}, " L ", " R       \
      ", p, 1, 1, " X ", " Y "; }" : RK_SUMS_##COUNT(d)                                                              \
      : "l"(left), "l"(right), "r"(more), "n"(LANES_LEFT), "n"(LANES_RIGHT));                                        \
  }
#define RK_WGMMA_HALF_REGISTERS(NAME, KIND, COUNT, N, A, R, P, Y)                                                    \
  template <int LANES_RIGHT = 0>                                                                                     \
  __device__ __forceinline__ void NAME(float (&d)[COUNT], const uint32_t (&left)[4], uint64_t right, int more = 1) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " P ", 0;\n"                                                        \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." KIND "." KIND " {" RK_REGISTERS_##COUNT "}, {" A "}, " R     \
      ", p, 1, 1, " Y "; }" : RK_SUMS_##COUNT(d)                                                                     \
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(more), "n"(LANES_RIGHT));            \
  }                                                                                                                  \
  template <int LANES_LEFT, int LANES_RIGHT>                                                                         \
  __device__ __forceinline__ void NAME(float (&d)[COUNT], const uint32_t (&left)[4], uint64_t right, int more = 1) { \
    static_assert(LANES_LEFT == 0, "a factor in registers has its terms side by side: LANES_LEFT is 0");             \
    NAME<LANES_RIGHT>(d, left, right, more);                                                                         \
  }
// The layouts may be named here too, and can be one thing alone.
#define RK_WGMMA_TERMS(NAME, COUNT, LEFT)                                                                            \
  template <int LANES_LEFT, int LANES_RIGHT>                                                                         \
  __device__ __forceinline__ void NAME(float (&d)[COUNT], LEFT, uint64_t right, int more = 1) {                      \
    static_assert(LANES_LEFT == 0 && LANES_RIGHT == 0, "these products take terms side by side: LANES are 0");       \
    NAME(d, left, right, more);                                                                                      \
  }
#define RK_WGMMA_PLAIN(NAME, KIND, TERMS, COUNT, N, L, R, P)                                                         \
  __device__ __forceinline__ void NAME(float (&d)[COUNT], uint64_t left, uint64_t right, int more = 1) {             \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " P ", 0;\n"                                                        \
      "wgmma.mma_async.sync.aligned.m64n" #N "k" #TERMS ".f32." KIND "." KIND " {" RK_REGISTERS_##COUNT "}, " L ", " \
      R ", p, 1, 1; }" : RK_SUMS_##COUNT(d) : "l"(left), "l"(right), "r"(more));                                     \
  }                                                                                                                  \
  RK_WGMMA_TERMS(NAME, COUNT, uint64_t left)
#define RK_WGMMA_PLAIN_REGISTERS(NAME, KIND, TERMS, COUNT, N, A, R, P)                                               \
  __device__ __forceinline__ void NAME(float (&d)[COUNT], const uint32_t (&left)[4], uint64_t right, int more = 1) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " P ", 0;\n"                                                        \
      "wgmma.mma_async.sync.aligned.m64n" #N "k" #TERMS ".f32." KIND "." KIND " {" RK_REGISTERS_##COUNT "}, {" A "}, " \
      R ", p, 1, 1; }" : RK_SUMS_##COUNT(d)                                                                          \
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(more));                              \
  }                                                                                                                  \
  RK_WGMMA_TERMS(NAME, COUNT, const uint32_t (&left)[4])
#define RK_WGMMA(COUNT, N, A, B, C, D, E, F, G)                                                                      \
  RK_WGMMA_HALF(wgmma_bf16, "bf16", COUNT, N, A, B, C, D, E)                                                         \
  RK_WGMMA_HALF(wgmma_f16, "f16", COUNT, N, A, B, C, D, E)                                                           \
  RK_WGMMA_HALF_REGISTERS(wgmma_bf16, "bf16", COUNT, N, A ", " B ", " C ", " D, E, F, G)                             \
  RK_WGMMA_HALF_REGISTERS(wgmma_f16, "f16", COUNT, N, A ", " B ", " C ", " D, E, F, G)                               \
  RK_WGMMA_PLAIN(wgmma_tf32, "tf32", 8, COUNT, N, A, B, C)                                                           \
  RK_WGMMA_PLAIN_REGISTERS(wgmma_tf32, "tf32", 8, COUNT, N, A ", " B ", " C ", " D, E, F)                            \
  RK_WGMMA_PLAIN(wgmma_e4m3, "e4m3", 32, COUNT, N, A, B, C)
#define RK_WGMMA_16 RK_WGMMA(8, 16, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
#define RK_WGMMA_32 RK_WGMMA(16, 32, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
#define RK_WGMMA_48 RK_WGMMA(24, 48, "%24", "%25", "%26", "%27", "%28", "%29", "%30")
#define RK_WGMMA_64 RK_WGMMA(32, 64, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
#define RK_WGMMA_80 RK_WGMMA(40, 80, "%40", "%41", "%42", "%43", "%44", "%45", "%46")
#define RK_WGMMA_96 RK_WGMMA(48, 96, "%48", "%49", "%50", "%51", "%52", "%53", "%54")
#define RK_WGMMA_112 RK_WGMMA(56, 112, "%56", "%57", "%58", "%59", "%60", "%61", "%62")
#define RK_WGMMA_128 RK_WGMMA(64, 128, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
#define RK_WGMMA_144 RK_WGMMA(72, 144, "%72", "%73", "%74", "%75", "%76", "%77", "%78")
#define RK_WGMMA_160 RK_WGMMA(80, 160, "%80", "%81", "%82", "%83", "%84", "%85", "%86")
#define RK_WGMMA_176 RK_WGMMA(88, 176, "%88", "%89", "%90", "%91", "%92", "%93", "%94")
#define RK_WGMMA_192 RK_WGMMA(96, 192, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
#define RK_WGMMA_208 RK_WGMMA(104, 208, "%104", "%105", "%106", "%107", "%108", "%109", "%110")
#define RK_WGMMA_224 RK_WGMMA(112, 224, "%112", "%113", "%114", "%115", "%116", "%117", "%118")
#define RK_WGMMA_240 RK_WGMMA(120, 240, "%120", "%121", "%122", "%123", "%124", "%125", "%126")
#define RK_WGMMA_256 RK_WGMMA(128, 256, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
RK_WGMMA_16 RK_WGMMA_32 RK_WGMMA_64 RK_WGMMA_128 RK_WGMMA_192 RK_WGMMA_256
#define RK_WGMMA_COLUMNS(N) namespace rk { RK_WGMMA_##N }
#else  // the compiler's pass for the host, which needs no more than names
#define RK_WGMMA(NAME)                                                                                               \
  template <int LANES_LEFT = 0, int LANES_RIGHT = 0, int N>                                                          \
  __device__ void NAME(float (&)[N], uint64_t, uint64_t, int = 1) {}                                                 \
  template <int LANES_RIGHT = 0, int N> __device__ void NAME(float (&)[N], const uint32_t (&)[4], uint64_t, int = 1) {}\
  template <int, int, int N> __device__ void NAME(float (&)[N], const uint32_t (&)[4], uint64_t, int = 1) {}
RK_WGMMA(wgmma_bf16) RK_WGMMA(wgmma_f16) RK_WGMMA(wgmma_tf32) RK_WGMMA(wgmma_e4m3)
#endif
#endif

#if !defined(__CUDA_ARCH__) || defined(RK_ON_BLACKWELL)
// Tensor memory: 128 lanes of 512 columns of 32 bits an SM. One whole warp takes COLUMNS of it (a power of two, 32 at
// least), whose address is written to shared memory at `to`, and gives them back at the end; all have to be given back.
template <int COLUMNS> __device__ __forceinline__ void tmem_take(uint32_t to) {
  asm volatile("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [%0], %1;" :: "r"(to), "n"(COLUMNS) : "memory");
  asm volatile("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned;");
}
template <int COLUMNS> __device__ __forceinline__ void tmem_give_back(uint32_t at) {
  asm volatile("tcgen05.dealloc.cta_group::1.sync.aligned.b32 %0, %1;" :: "r"(at), "n"(COLUMNS));
}
// 32 columns of this warp's 32 lanes: lane l of warp w of a warpgroup has row 32 w + l, column c in d[c]. `at` is the
// address of tensor memory, plus the first column, plus 32 w << 16. They are there after tmem_wait.
__device__ __forceinline__ void tmem_load_32(float (&d)[32], uint32_t at) {
  asm volatile("tcgen05.ld.sync.aligned.32x32b.x32.b32 "
               "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, "
               "%22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, [%32];"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3]), "=f"(d[4]), "=f"(d[5]), "=f"(d[6]), "=f"(d[7]),
                 "=f"(d[8]), "=f"(d[9]), "=f"(d[10]), "=f"(d[11]), "=f"(d[12]), "=f"(d[13]), "=f"(d[14]), "=f"(d[15]),
                 "=f"(d[16]), "=f"(d[17]), "=f"(d[18]), "=f"(d[19]), "=f"(d[20]), "=f"(d[21]), "=f"(d[22]), "=f"(d[23]),
                 "=f"(d[24]), "=f"(d[25]), "=f"(d[26]), "=f"(d[27]), "=f"(d[28]), "=f"(d[29]), "=f"(d[30]), "=f"(d[31])
               : "r"(at) : "memory");
}
// What was loaded is there: `d` is not read before.
__device__ __forceinline__ void tmem_wait(float (&d)[32]) {
  asm volatile("tcgen05.wait::ld.sync.aligned;" ::: "memory");
#pragma unroll
  for (int u = 0; u < 32; ++u) asm volatile("" : "+f"(d[u]) :: "memory");
}
// Between a barrier of threads and tcgen05: `before` by who worked last, `after` by who goes on.
__device__ __forceinline__ void tcgen05_before_sync() { asm volatile("tcgen05.fence::before_thread_sync;" ::: "memory"); }
__device__ __forceinline__ void tcgen05_after_sync() { asm volatile("tcgen05.fence::after_thread_sync;" ::: "memory"); }
// A factor's tile of 128 bytes of terms a row, swizzled by 128 bytes as TMA writes it, at a multiple of 1024 bytes; the
// next 16 terms are 32 bytes on.
__device__ __forceinline__ uint64_t tcgen05_descriptor(uint32_t at) {
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(1024 >> 4) << 32 | uint64_t(1) << 46 |
         uint64_t(2) << 61;
}
// By one thread: 128 rows x COLUMNS (a multiple of 16, at most 256) of 16 terms, added to sums in tensor memory from
// the column `sums` on, row r in lane r; without `more` they are overwritten. tcgen05_commit(bar): an arrival at the
// barrier when all products so far are done, after which the factors' memory is free and tcgen05_after_sync tells of
// the sums.
#define RK_TCGEN05(NAME, KIND)                                                                                       \
  template <int COLUMNS>                                                                                             \
  __device__ __forceinline__ void NAME(uint32_t sums, uint64_t left, uint64_t right, int more = 1) {                 \
    static_assert(COLUMNS % 16 == 0 && COLUMNS <= 256, "columns in multiples of 16, at most 256");                   \
    constexpr uint32_t shape = 1 << 4 | KIND << 7 | KIND << 10 | (COLUMNS >> 3) << 17 | (128 >> 4) << 24;            \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, %4, 0;\n"                                                           \
                 "tcgen05.mma.cta_group::1.kind::f16 [%0], %1, %2, %3, p; }"                                         \
                 :: "r"(sums), "l"(left), "l"(right), "r"(shape), "r"(more) : "memory");                             \
  }
RK_TCGEN05(tcgen05_f16, 0)
RK_TCGEN05(tcgen05_bf16, 1)
__device__ __forceinline__ void tcgen05_commit(uint32_t bar) {
  asm volatile("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64 [%0];" :: "r"(bar) : "memory");
}
#endif

}  // namespace rk
#endif
#ifndef RK_WGMMA_COLUMNS
#define RK_WGMMA_COLUMNS(N)
#endif
