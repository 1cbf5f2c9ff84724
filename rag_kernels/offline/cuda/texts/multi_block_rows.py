"""The fixed part of CUDA for rows that blocks share: what a thread keeps, and how blocks exchange results.

`COPIES`: to shared memory while a thread computes; `EXCHANGE`: what blocks show each other. Other kernels use both.
"""

AWAITED = "\n".join(f"    case {n}: return await_group<{n}>();" for n in range(1, 27))
BOARD = 16  # places for what blocks show each other: a cluster needs two meetings of eight
COPIES = """
#ifdef __CUDACC__
__device__ inline uint32_t in_shared(const void* p) { return uint32_t(__cvta_generic_to_shared(p)); }
// To shared memory while the thread does something else.
__device__ inline void copy_ahead(float4* to, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" :: "r"(in_shared(to)), "l"(from) : "memory");
}
__device__ inline void copy_ahead(float* to, const float* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" :: "r"(in_shared(to)), "l"(from) : "memory");
}
__device__ inline void copy_or_clear(float4* to, const void* from, bool there) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
               :: "r"(in_shared(to)), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ inline void close_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> __device__ void await_group() { asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory"); }
// Wait until so many of the latest copies are all that is still on its way: a number wherever loops are unrolled.
__device__ __forceinline__ void await_copies(int later) {
  switch (later) {
AWAITED
    default: return await_group<0>();
  }
}
#endif
""".replace("AWAITED", AWAITED)
EXCHANGE = """
#ifdef __CUDACC__
// Sixteen bytes at once: who sees one half of them sees the other.
__device__ inline void post(ulonglong2* to, ulonglong2 v) {
  asm volatile("{ .reg .b128 r; mov.b128 r, {%1, %2}; st.relaxed.gpu.global.b128 [%0], r; }"
               :: "l"(to), "l"(v.x), "l"(v.y) : "memory");
}
__device__ inline ulonglong2 posted(const ulonglong2* at) {
  ulonglong2 v;
  asm volatile("{ .reg .b128 r; ld.relaxed.gpu.global.b128 r, [%2]; mov.b128 {%0, %1}, r; }"
               : "=l"(v.x), "=l"(v.y) : "l"(at) : "memory");
  return v;
}
#endif

// What blocks show each other has four bytes, or eight, or eight behind four: room for a number is left.
template <class T> __device__ ulonglong2 packed(T v, unsigned long long number) {
  static_assert(sizeof(T) <= 16, "a slot has sixteen bytes");
  ulonglong2 words = {0, 0};
  memcpy(sizeof(T) == 8 ? &words.y : &words.x, &v, sizeof v);
  words.x = (words.x & 0xffffffffu) | number << 32;
  return words;
}
template <class T> __device__ T unpacked(const ulonglong2& words) {
  T v;
  memcpy(&v, sizeof(T) == 8 ? &words.y : &words.x, sizeof v);
  return v;
}
"""
MULTI_BLOCK_HEAD = """
#ifdef __CUDACC__
// Sixteen bytes at once: left to itself nvcc stored batch norm's one number at a time, four times as many writes.
__device__ inline float4 take_whole(const float4* from) {
  float4 v;
  asm volatile("ld.shared.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(in_shared(from)));
  return v;
}
__device__ inline void put_whole(void* to, float4 v) {
  asm volatile("st.global.v4.f32 [%0], {%1, %2, %3, %4};"
               :: "l"(to), "f"(v.x), "f"(v.y), "f"(v.z), "f"(v.w) : "memory");
}
__device__ inline void cluster_barrier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.release.aligned;\\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
#endif
}
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
// A counter in shared memory: one arrival and as many bytes as are expected end a meeting, and begin the next.
__device__ inline void begin_count(uint64_t* counter) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\\nfence.mbarrier_init.release.cluster;"
               :: "r"(in_shared(counter)) : "memory");
}
__device__ inline void await_bytes(uint64_t* counter, int bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
               :: "r"(in_shared(counter)), "r"(bytes) : "memory");
}
__device__ inline void close_count(uint64_t* counter) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" :: "r"(in_shared(counter)) : "memory");
}
__device__ inline void await_count(uint64_t* counter, int odd) {
  int done = 0;
  while (!done)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.b32 %0, 1, 0, p; }"
                 : "=r"(done) : "r"(in_shared(counter)), "r"(odd) : "memory");
}
// To the same place in the shared memory of a block of this cluster, whose counter sees it arrive. A barrier of the
// cluster in its place would make each thread wait until all that it has stored is seen on the whole device.
template <int MEETINGS, class T> __device__ void put_beside(T* here, uint64_t* counter, int block, T v) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8 || sizeof(T) == 16, "one store");
  unsigned long long words[2] = {};
  memcpy(words, &v, sizeof(T));
  uint32_t to, count;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(to) : "r"(in_shared(here)), "r"(block));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(count) : "r"(in_shared(counter)), "r"(block));
  if (sizeof(T) == 4)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
                 :: "r"(to), "r"(uint32_t(words[0])), "r"(count) : "memory");
  else if (sizeof(T) == 8)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];"
                 :: "r"(to), "l"(words[0]), "r"(count) : "memory");
  else
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b64 [%0], {%1, %2}, [%3];"
                 :: "r"(to), "l"(words[0]), "l"(words[1]), "r"(count) : "memory");
}
#else
__device__ inline void begin_count(uint64_t*) {}
__device__ inline void await_bytes(uint64_t*, int) {}
__device__ inline void close_count(uint64_t*) {}
__device__ inline void await_count(uint64_t*, int) {}
template <int MEETINGS, class T> __device__ void put_beside(T*, uint64_t*, int, T) {}
#endif
#endif

template <class V> __device__ const float4& whole(const V& v) { return reinterpret_cast<const float4&>(v); }

// What a thread has of this row and of rows to come: each thread copies, waits for and reads its own alone. `NAMES`
// tensors are kept, in SLOTS places each, which begin at `base` for a row.
template <class T, int NAMES, int SLOTS, int WIDTH> struct Ring {  // WIDTH: threads of the block
  float4* mine;
  int base = 0;
  __device__ Ring() {
    extern __shared__ float4 held[];
    mine = held + threadIdx.x;
  }
  // Vector `j` of this row, or what comes in its place.
  __device__ float4* place(int name, int j) const {
    const int slot = base + j < SLOTS ? base + j : base + j - SLOTS;
    return mine + (slot * NAMES + name) * WIDTH;
  }
  __device__ Pack<T, 16 / sizeof(T)> at(int name, int j) const {
    const float4 v = take_whole(place(name, j));
    return reinterpret_cast<const Pack<T, 16 / sizeof(T)>&>(v);
  }
  __device__ void copy(int name, int j, const T* from) const { copy_ahead(place(name, j), from); }
  // Four elements that lie a block's threads apart, as far as the row goes.
  __device__ void copy_apart(int name, int j, const float* from, int64_t left) const {
    float* const target = &place(name, j)->x;
#pragma unroll
    for (int u = 0; u < 4; ++u)
      if (u * WIDTH < left) copy_ahead(target + u, from + u * WIDTH);
  }
  __device__ void done(int items) { base = base + items < SLOTS ? base + items : base + items - SLOTS; }
};

template <class T, int NAMES> struct Starts { const T* of[NAMES]; };  // of a row of each tensor

// k / by for many k below 2^31 and one `by`, exactly: a product and a shift.
struct Quotient {
  uint32_t by, factor;
  int shift = 31;
  __device__ explicit Quotient(int64_t n) : by(uint32_t(n)) {
    while ((int64_t(1) << (shift - 31)) < n) ++shift;
    factor = uint32_t(((uint64_t(1) << shift) + by - 1) / by);
  }
  __device__ uint32_t operator()(uint32_t k) const { return uint32_t(uint64_t(k) * factor >> shift); }
};

// What warps have of a reduction, and one warp's sum of it; of one row beside another (`odd`), since no barrier stands
// between what the one warp reads of a row and what others have of the next.
template <int WHICH, class T> __device__ T* parts_of_warps() {
  __shared__ T parts[64];
  return parts;
}
template <int WHICH, class T, class F> __device__ void put_part(int odd, T v, F f) {
  v = of_lanes(v, f, 32);
  if (threadIdx.x % 32 == 0) parts_of_warps<WHICH, T>()[32 * odd + threadIdx.x / 32] = v;
}
template <int WHICH, class F, class T> __device__ T take_part(int odd, F f, T start) {
  T v = threadIdx.x < blockDim.x / 32 ? parts_of_warps<WHICH, T>()[32 * odd + threadIdx.x] : start;
  return of_lanes(v, f, 32);
}

// Up to sixteen blocks that send each other what they have.
constexpr int BOARD = SHOWN_AT_MOST;
struct Cluster {
  ulonglong2* board;  // as of a Team, which has it elsewhere
  int count, parts, shown;
  __device__ unsigned number() const { return blockIdx.x / parts; }
  __device__ unsigned part() const { return blockIdx.x % parts; }
  // Of the meetings that a block may not have seen the end of: two, or four where it begins one before another ends.
  template <int MEETINGS> __device__ static uint64_t* counter(int meeting) {
    __shared__ uint64_t counters[MEETINGS];
    return counters + meeting % MEETINGS;
  }
  template <int MEETINGS> static constexpr int most = MEETINGS > 2 ? 16 : 8;  // blocks
  // What the blocks have sent of one reduction.
  template <int WHICH, int MEETINGS, class T> __device__ static T* sent(int meeting) {
    __shared__ __align__(16) T places[most<MEETINGS> * MEETINGS];
    return places + meeting % MEETINGS * most<MEETINGS>;
  }
  template <int MEETINGS> __device__ void enter() const {
    for (int i = 0; threadIdx.x == 0 && i < MEETINGS; ++i) begin_count(counter<MEETINGS>(i));
    cluster_barrier();
  }
  // By one warp, whose lanes have it alike.
  template <int WHICH, int MEETINGS, class T> __device__ void show(int meeting, T v) const {
    T* const place = sent<WHICH, MEETINGS, T>(meeting) + part();
    if (int(threadIdx.x) < parts) put_beside<MEETINGS>(place, counter<MEETINGS>(meeting), int(threadIdx.x), v);
    if (threadIdx.x == 0) await_bytes(counter<MEETINGS>(meeting), parts * int(sizeof(T)));
  }
  template <int WHICH, class T, class F> __device__ void gather(int, F, T) const {}
  template <int MEETINGS> __device__ void meet(int meeting) const {
    if (threadIdx.x == 0) close_count(counter<MEETINGS>(meeting));
    await_count(counter<MEETINGS>(meeting), meeting / MEETINGS % 2);
  }
  template <int WHICH, int MEETINGS, class T, class F> __device__ T look(int meeting, F f, T start) const {
    const int i = threadIdx.x % most<MEETINGS>;
    const T v = i < parts ? sent<WHICH, MEETINGS, T>(meeting)[i] : start;
    return of_lanes(v, f, most<MEETINGS>);
  }
  __device__ void leave() const { cluster_barrier(); }  // nobody goes while others send to it
};

// Blocks that meet through global memory. All teams are resident at once, so that a block may wait for the others.
struct Team {
  ulonglong2* board;  // [teams][2][shown][parts]: what the blocks show, for this meeting and the next
  int count, parts, shown;
  __device__ unsigned number() const { return blockIdx.x / parts; }
  __device__ unsigned part() const { return blockIdx.x % parts; }
  __device__ ulonglong2* slot(int meeting, int which, int block) const {
    return board + ((int(number()) * 2 + meeting % 2) * shown + which) * parts + block;
  }
  template <int> __device__ void enter() const {}
  template <int WHICH, int, class T> __device__ void show(int meeting, T v) const {
    if (threadIdx.x == 0) post(slot(meeting, WHICH, part()), packed(v, meeting + 1));
  }
  __device__ static ulonglong2* found() {
    __shared__ ulonglong2 gathered[BOARD];
    return gathered;
  }
  // One warp combines what the blocks have shown of one reduction, in an order that does not change.
  template <int WHICH, class T, class F> __device__ void gather(int meeting, F f, T start) const {
    if (int(threadIdx.x / 32) != WHICH % int(blockDim.x / 32)) return;
    T v = start;
    for (int i = threadIdx.x % 32; i < parts; i += 32) {
      ulonglong2 words;
      do words = posted(slot(meeting, WHICH, i)); while (words.x >> 32 != unsigned(meeting + 1));
      v = f(v, unpacked<T>(words));
    }
    v = of_lanes(v, f, 32);
    if (threadIdx.x % 32 == 0) found()[WHICH] = packed(v, 0);
  }
  template <int> __device__ void meet(int) const { __syncthreads(); }
  template <int WHICH, int, class T, class F> __device__ T look(int, F, T) const { return unpacked<T>(found()[WHICH]); }
  __device__ void leave() const {}
};

// How a kernel for teams is launched: its blocks' threads and shared memory, and how many teams of so many blocks the
// device holds at once (none where it has too little memory in a block).
struct Shared {
  cudaLaunchAttribute together[1];
  cudaLaunchConfig_t config = {};
  template <class K> Shared(K kernel, int parts, int threads, int bytes, bool cluster, cudaStream_t stream) {
    cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
    if (cluster && parts > 8) cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    together[0].id = cluster ? cudaLaunchAttributeClusterDimension : cudaLaunchAttributeCooperative;
    if (cluster) {
      together[0].val.clusterDim.x = parts, together[0].val.clusterDim.y = together[0].val.clusterDim.z = 1;
    } else {
      together[0].val.cooperative = 1;
    }
    config.gridDim = dim3(parts), config.blockDim = dim3(threads), config.dynamicSmemBytes = bytes;
    config.stream = stream, config.attrs = together, config.numAttrs = 1;
  }
  template <class K> int64_t held(K kernel) const {
    int device = 0, processors = 0, found = 0;
    const int parts = config.gridDim.x;
    if (together[0].id == cudaLaunchAttributeClusterDimension)
      return parts <= 16 && cudaOccupancyMaxActiveClusters(&found, kernel, &config) == cudaSuccess ? found : 0;
    cudaGetDevice(&device);
    cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
    const int threads = config.blockDim.x, bytes = int(config.dynamicSmemBytes);
    const int failed = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&found, kernel, threads, bytes);
    return failed ? 0 : int64_t(processors) * found / parts;
  }
};
inline int parts_of(int64_t vectors, int items, int threads) {
  return int((vectors + items * threads - 1) / (items * threads));
}
template <class TEAM> constexpr bool is_cluster = false;
template <> inline constexpr bool is_cluster<Cluster> = true;
// Whether the blocks that a row takes can be resident together.
template <class TEAM, class... P>
bool fits(void (*kernel)(TEAM, P...), int64_t vectors, int items, int threads, int bytes) {
  if (!vectors) return false;
  RK_CHECK(cudaGetLastError() == cudaSuccess, "an earlier kernel could not be launched");  // before it is cleared below
  const int parts = parts_of(vectors, items, threads);
  const bool fit = Shared(kernel, parts, threads, bytes, is_cluster<TEAM>, nullptr).held(kernel) > 0;
  cudaGetLastError();
  return fit;
}
// As many teams as the device holds, each for every `teams`th row.
template <class TEAM, class... P, class... A>
void spread(void (*kernel)(TEAM, P...), int64_t rows, int64_t vectors, int items, int threads, int bytes, int shown,
            cudaStream_t stream, A... args) {
  if (!rows) return;
  const int parts = parts_of(vectors, items, threads);
  Shared launch(kernel, parts, threads, bytes, is_cluster<TEAM>, stream);
  const int64_t held = launch.held(kernel), teams = held < rows ? held : rows;
  RK_CHECK(held > 0, "a row takes more blocks than the device holds");
  ulonglong2* board = nullptr;
  const int64_t slots = is_cluster<TEAM> ? 0 : teams * 2 * shown * parts;
  if (slots) {
    board = scratch<ulonglong2>(slots, stream);
    const size_t room = sizeof(ulonglong2) * slots;
    RK_CHECK(cudaMemsetAsync(board, 0, room, stream) == cudaSuccess, "cannot clear device memory");
  }
  const TEAM team{board, int(teams), parts, shown};
  launch.config.gridDim = dim3(blocks(teams * parts));
  const int failed = cudaLaunchKernelEx(&launch.config, kernel, team, P(args)...);
  RK_CHECK(failed == cudaSuccess, "cannot launch all blocks of a row at once");
  if (slots) cudaFreeAsync(board, stream);
}
""".replace("SHOWN_AT_MOST", str(BOARD))
