"""How kernels are launched: blocks, threads that fit, memory on the stream, what a device says.

Goes out: pieces of C++ text for the host, in the order in which they stand.
"""

from __future__ import annotations

from rag_kernels.offline.cuda.texts.piece import Piece

LAUNCHES = (
    Piece(
        "blocks",
        """\
inline unsigned blocks(int64_t n) {
  RK_CHECK(n < (int64_t(1) << 31), "this kernel needs fewer than 2^31 blocks");
  return unsigned(n);
}
""",
    ),
    Piece(
        "small",
        """\
// Indices are taken apart in 32 bits; offsets have 64.
inline int64_t small(int64_t n) {
  RK_CHECK(n < (int64_t(1) << 32), "this kernel needs loops of fewer than 2^32 elements");
  return n;
}
""",
    ),
    Piece(
        "by_device",
        """\
#include <atomic>
// What a function says of the device in use, asked once on each: what is set for a kernel is set on one, and others may
// differ. Each lambda has answers of its own, and so has each library: the static number of a function that others may
// share is one for all that a process has loaded.
template <class F> static int64_t by_device(F ask) {
  static std::atomic<int64_t> answers[64];  // one more than was said
  int device = 0;
  cudaGetDevice(&device);
  if (device >= 64) return ask();
  int64_t found = answers[device];
  if (!found) answers[device] = found = ask() + 1;
  return found - 1;
}
""",
    ),
    Piece(
        "keep_pool",
        """\
// Memory on the stream. The pool keeps what it has: by default it would return everything at each synchronisation.
inline bool keep_pool() {
  int device = 0;
  cudaMemPool_t pool;
  uint64_t all = UINT64_MAX;
  return cudaGetDevice(&device) == cudaSuccess && cudaDeviceGetDefaultMemPool(&pool, device) == cudaSuccess &&
         cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &all) == cudaSuccess;
}
""",
    ),
    Piece(
        "scratch",
        """\
template <class T> T* scratch(int64_t n, cudaStream_t stream) {
  RK_CHECK(by_device([] { return keep_pool(); }), "the device has no memory pool");
  void* memory = nullptr;
  RK_CHECK(cudaMallocAsync(&memory, sizeof(T) * n, stream) == cudaSuccess, "no device memory for a partial result");
  return static_cast<T*>(memory);
}
""",
    ),
    Piece(
        "aligned",
        """\
// Whether a thread may load sixteen bytes at a time from all of these.
inline bool aligned(std::initializer_list<const void*> pointers) {
  for (const void* p : pointers)
    if (uintptr_t(p) % 16) return false;
  return true;
}
""",
    ),
    Piece(
        "fitted",
        """\
// A block with as many threads as a kernel may have: one whose threads have many registers has fewer.
template <auto KERNEL> static dim3 fitted(dim3 block) {
  const int64_t most = by_device([] {
    cudaFuncAttributes found;
    RK_CHECK(cudaFuncGetAttributes(&found, (const void*)KERNEL) == cudaSuccess, "no such kernel on this device");
    return found.maxThreadsPerBlock;
  });
  while (block.x * block.y > most) (block.y > 1 ? block.y : block.x) /= 2;
  return block;
}
""",
    ),
    Piece(
        "quad_block",
        """\
// Threads for a row of so many vectors: a warp for short ones (several rows a block), or less where rows fill warps;
// more for long ones. Four vectors a thread are on their way together: by half of that rows of 4096 were slower.
inline dim3 quad_block(int64_t quads, int64_t rows, unsigned least = 8) {
  if (quads <= 256) {
    unsigned lanes = quads <= 8 ? 4 : quads <= 16 ? least : quads <= 32 ? 2 * least : 32;
    while (rows % (32 / lanes)) lanes *= 2;
    return dim3(lanes, THREADS / lanes);
  }
  if (quads <= 2 * THREADS) return dim3(THREADS / 2, 1);
  return dim3(quads <= 4 * THREADS ? THREADS : quads <= 8192 ? 512 : LONG_THREADS, 1);
}
""",
    ),
    Piece(
        "row_block",
        """\
// Threads for a row: one warp for short rows (several rows a block), or less where rows fill warps; more for long ones.
inline dim3 row_block(int64_t length, int64_t rows) {
  if (length <= 1024) {
    unsigned lanes = length <= 16 ? 4 : length <= 32 ? 8 : length <= 64 ? 16 : 32;
    while (rows % (32 / lanes)) lanes *= 2;
    return dim3(lanes, THREADS / lanes);
  }
  return dim3(length <= 8 * THREADS ? THREADS : LONG_THREADS, 1);
}
""",
    ),
)
