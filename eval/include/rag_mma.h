// rag_mma.h: tensor cores and their loads, for kernels that include it after rag_kernel.h. Only device functions.
//
//   sm_80 and later   cp_async_16, ldmatrix, mma_bf16, mma_f16, mma_tf32, mma_s8, split_tf32
//   sm_90a alone      wgmma_bf16, wgmma_f16, wgmma_tf32, wgmma_e4m3, and what goes with them
//
// sm_100 has no wgmma (its tcgen05 is not here); mma and ldmatrix work there. What a target has not is not declared.
// Fragments of mma: lane = 4 g + t (g = lane / 4, t = lane % 4). Sums of 16 x 8: d[0], d[1] are row g, columns 2t and
// 2t + 1; d[2], d[3] are row g + 8. Left of 16 x 16: a[0], a[2] are row g, a[1], a[3] row g + 8, terms 2t, 2t + 1 (and
// + 8 in a[2], a[3]); right: b[0], b[1] are column g, terms 2t, 2t + 1 (and + 8).
#pragma once
#include "rag_kernel.h"
#if RK_DEVICE && defined(__CUDACC__)
namespace rk {

// The address of something in shared memory, as instructions take it.
__device__ __forceinline__ uint32_t shared_address(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }

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

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
// Products of a warpgroup (four warps, all of them): 64 rows; sums d[COUNT] are N = 2 COUNT columns. Thread
// 32 w + 4 g + t has of columns 8 j + 2t, + 1 the rows 16 w + g in d[4 j], d[4 j + 1] and 16 w + g + 8 in d[4 j + 2],
// d[4 j + 3]. Without `more` the sums are overwritten. Order: wgmma_fence, products, wgmma_commit, wgmma_wait<0>.
//
// Factors lie in shared memory, swizzled by 128 bytes as TMA writes them, at multiples of 1024 bytes. A tile of 128
// bytes of terms a row: wgmma_descriptor(address, 1, 1024), the next 16 (TF32 8, fp8 32) terms 32 bytes on. Lanes side
// by side (sixteen bits only, LANES_LEFT or LANES_RIGHT 1): slabs of 64 lanes are `leading` bytes apart, groups of
// eight terms `stride` bytes.
__device__ __forceinline__ uint64_t wgmma_descriptor(uint32_t at, uint32_t leading, uint32_t stride) {
  return uint64_t((at & 0x3ffff) >> 4) | uint64_t(leading >> 4) << 16 | uint64_t(stride >> 4) << 32 | uint64_t(1) << 62;
}
__device__ __forceinline__ void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" :: "n"(LATER) : "memory");
}
// Registers change hands between warpgroups of a block; multiples of 8, from 24 to 240.
template <int COUNT> __device__ __forceinline__ void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(COUNT));
}
template <int COUNT> __device__ __forceinline__ void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(COUNT));
}

#define RK_REGISTERS_8 "%0, %1, %2, %3, %4, %5, %6, %7"
#define RK_REGISTERS_16 RK_REGISTERS_8 ", %8, %9, %10, %11, %12, %13, %14, %15"
#define RK_REGISTERS_32 RK_REGISTERS_16 \
  ", %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31"
#define RK_REGISTERS_64 RK_REGISTERS_32 \
  ", %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47" \
  ", %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63"
#define RK_REGISTERS_96 RK_REGISTERS_64 \
  ", %64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79" \
  ", %80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95"
#define RK_REGISTERS_128 RK_REGISTERS_96 \
  ", %96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111" \
  ", %112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127"
#define RK_SUMS_4(d, i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define RK_SUMS_8(d, i) RK_SUMS_4(d, i), RK_SUMS_4(d, i + 4)
#define RK_SUMS_16(d, i) RK_SUMS_8(d, i), RK_SUMS_8(d, i + 8)
#define RK_SUMS_32(d, i) RK_SUMS_16(d, i), RK_SUMS_16(d, i + 16)
#define RK_SUMS_64(d, i) RK_SUMS_32(d, i), RK_SUMS_32(d, i + 32)
#define RK_SUMS_96(d, i) RK_SUMS_64(d, i), RK_SUMS_32(d, i + 64)
#define RK_SUMS_128(d, i) RK_SUMS_64(d, i), RK_SUMS_64(d, i + 64)
// COUNT floats a thread are N = 2 COUNT columns; L, R, P, X, Y: the places of the factors, the predicate, the layouts.
#define RK_WGMMA_16(NAME, KIND, COUNT, N, L, R, P, X, Y)                                                           \
  template <int LANES_LEFT = 0, int LANES_RIGHT = 0>                                                               \
  __device__ __forceinline__ void NAME(float (&d)[COUNT], uint64_t left, uint64_t right, int more = 1) {           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " P ", 0;\n"                                                      \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." KIND "." KIND " {" RK_REGISTERS_##COUNT "}, " L ", " R        \
      ", p, 1, 1, " X ", " Y "; }" : RK_SUMS_##COUNT(d, 0)                                                          \
      : "l"(left), "l"(right), "r"(more), "n"(LANES_LEFT), "n"(LANES_RIGHT));                                       \
  }
#define RK_WGMMA_16_REGISTERS(NAME, KIND, COUNT, N, A, R, P, Y)                                                    \
  template <int LANES_RIGHT = 0>                                                                                   \
  __device__ __forceinline__ void NAME(float (&d)[COUNT], const uint32_t (&left)[4], uint64_t right, int more = 1) { \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " P ", 0;\n"                                                      \
      "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." KIND "." KIND " {" RK_REGISTERS_##COUNT "}, {" A "}, " R      \
      ", p, 1, 1, " Y "; }" : RK_SUMS_##COUNT(d, 0)                                                                 \
      : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right), "r"(more), "n"(LANES_RIGHT));           \
  }
#define RK_WGMMA_PLAIN(NAME, KIND, TERMS, COUNT, N, L, R, P)                                                       \
  __device__ __forceinline__ void NAME(float (&d)[COUNT], uint64_t left, uint64_t right, int more = 1) {           \
    asm volatile("{ .reg .pred p; setp.ne.b32 p, " P ", 0;\n"                                                      \
      "wgmma.mma_async.sync.aligned.m64n" #N "k" #TERMS ".f32." KIND "." KIND " {" RK_REGISTERS_##COUNT "}, " L ", " \
      R ", p, 1, 1; }" : RK_SUMS_##COUNT(d, 0) : "l"(left), "l"(right), "r"(more));                                 \
  }
#define RK_WGMMA(COUNT, N, A, B, C, D, E, F, G)                                                                    \
  RK_WGMMA_16(wgmma_bf16, "bf16", COUNT, N, A, B, C, D, E)                                                         \
  RK_WGMMA_16(wgmma_f16, "f16", COUNT, N, A, B, C, D, E)                                                           \
  RK_WGMMA_16_REGISTERS(wgmma_bf16, "bf16", COUNT, N, A ", " B ", " C ", " D, E, F, G)                           \
  RK_WGMMA_16_REGISTERS(wgmma_f16, "f16", COUNT, N, A ", " B ", " C ", " D, E, F, G)                             \
  RK_WGMMA_PLAIN(wgmma_tf32, "tf32", 8, COUNT, N, A, B, C)                                                         \
  RK_WGMMA_PLAIN(wgmma_e4m3, "e4m3", 32, COUNT, N, A, B, C)
RK_WGMMA(8, 16, "%8", "%9", "%10", "%11", "%12", "%13", "%14")
RK_WGMMA(16, 32, "%16", "%17", "%18", "%19", "%20", "%21", "%22")
RK_WGMMA(32, 64, "%32", "%33", "%34", "%35", "%36", "%37", "%38")
RK_WGMMA(64, 128, "%64", "%65", "%66", "%67", "%68", "%69", "%70")
RK_WGMMA(96, 192, "%96", "%97", "%98", "%99", "%100", "%101", "%102")
RK_WGMMA(128, 256, "%128", "%129", "%130", "%131", "%132", "%133", "%134")
#endif

}  // namespace rk
#endif
