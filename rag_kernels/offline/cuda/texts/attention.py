"""The fixed part of attention in CUDA on mma.sync: instructions, tiles of keys, the softmax joined from tile to tile.

`INSTRUCTIONS` alone holds inline assembly, so that an emulation can put functions of its own in its place.
"""

INSTRUCTIONS = """
namespace attend {
#define RK_MMA_16(TYPE, NAME)                                                                                      \\
  __device__ __forceinline__ void multiply(TYPE, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) { \\
    asm("mma.sync.aligned.m16n8k16.row.col.f32." NAME "." NAME ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "         \\
        "{%8, %9}, {%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])                             \\
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));                                           \\
  }
#ifdef __CUDA_BF16_TYPES_EXIST__
RK_MMA_16(__nv_bfloat16, "bf16")
__device__ __forceinline__ uint32_t packed(__nv_bfloat16, float a, float b) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(a, b);
  uint32_t u;
  memcpy(&u, &v, 4);
  return u;
}
#endif
#ifdef __CUDA_FP16_TYPES_EXIST__
RK_MMA_16(__half, "f16")
__device__ __forceinline__ uint32_t packed(__half, float a, float b) {
  const __half2 v = __floats2half2_rn(a, b);
  uint32_t u;
  memcpy(&u, &v, 4);
  return u;
}
#endif
#undef RK_MMA_16
__device__ __forceinline__ void multiply(float, float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};" : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
// Four 8 x 8 matrices of sixteen-bit elements; lane l has the address of row l % 8 of matrix l / 8.
__device__ __forceinline__ void four(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(uint32_t(__cvta_generic_to_shared(row))) : "memory");
}
__device__ __forceinline__ void four_turned(uint32_t (&r)[4], const void* row) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
      : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(uint32_t(__cvta_generic_to_shared(row))) : "memory");
}
__device__ __forceinline__ void bring(void* to, const void* from, bool there) {  // sixteen bytes, or zeros
  const uint32_t at = uint32_t(__cvta_generic_to_shared(to));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" :: "r"(at), "l"(from), "r"(there ? 16 : 0) : "memory");
}
__device__ __forceinline__ void close() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int LATER> __device__ __forceinline__ void await() {
  asm volatile("cp.async.wait_group %0;" :: "n"(LATER) : "memory");
}
__device__ __forceinline__ float two_to(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
}  // namespace attend
"""

HEAD = """
namespace attend {
__host__ __device__ __forceinline__ int64_t least_of(int64_t a, int64_t b) { return a < b ? a : b; }
__host__ __device__ __forceinline__ int64_t most_of(int64_t a, int64_t b) { return a < b ? b : a; }
__host__ __device__ constexpr int whole(int n, int of) { return (n + of - 1) / of * of; }
template <class T> struct Total { using type = float; };
template <> struct Total<float> { using type = double; };
template <class T> __device__ __forceinline__ float power(float x) { return two_to(x); }
template <> __device__ __forceinline__ float power<float>(float x) { return exp2f(x); }

// Bytes of shared memory of a block, for queries and for the keys and values of each stage, 16 bytes between rows.
template <class T, int D, int E, int KEYS, int ROWS, int STAGES> constexpr int bytes() {
  constexpr int V = 16 / sizeof(T), LD = whole(D, 16) + V, LE = whole(E, 16) + V;
  constexpr int tiles = (ROWS * LD + STAGES * KEYS * (LD + LE)) * int(sizeof(T));
  constexpr int meeting = ROWS < 64 ? 4 * 16 * (whole(E, 16) + 4) * 4 : 0;
  return tiles > meeting ? tiles : meeting;
}

// `count` rows of D elements, zeros behind them up to whole sixteens and in rows that are not there. Elements of
// another type, or in rows that begin anywhere, come one by one, several on their way at once.
template <class T, int D, int FAST, class Row>
__device__ __forceinline__ void fill(T* to, int count, int64_t there, Row row) {
  constexpr int V = 16 / sizeof(T), DP = whole(D, 16), LD = DP + V, AHEAD = 8;
  if constexpr (FAST != 0 && std::is_same<decltype(row(0)), const T*>::value) {
    for (int t = threadIdx.x; t < count * (DP / V); t += 128) {
      const int i = t / (DP / V), d = t % (DP / V) * V;
      const bool in = i < there && d < D;
      bring(to + i * LD + d, row(in ? i : 0) + (in ? d : 0), in);
    }
  } else {
    for (int start = threadIdx.x; start < count * DP; start += AHEAD * 128) {
      float ahead[AHEAD];
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        const int t = start + u * 128, i = t / DP, d = t % DP;
        ahead[u] = t < count * DP && i < there && d < D ? float(row(i)[d]) : 0.0f;
      }
#pragma unroll
      for (int u = 0; u < AHEAD; ++u) {
        const int t = start + u * 128;
        if (t < count * DP) to[t / DP * LD + t % DP] = ahead[u];
      }
    }
  }
}

struct Halves { uint32_t high, low; };  // of a float: two TF32 numbers that hold 22 of its bits and more
__device__ __forceinline__ Halves halves_of(float x) {
  const uint32_t high = (__float_as_uint(x) + 0x1000u) & 0xffffe000u;
  return {high, __float_as_uint(x - __uint_as_float(high))};
}
template <bool ONCE>
__device__ __forceinline__ void multiply_halves(float (&c)[4], const uint32_t (&high)[4], const uint32_t (&low)[4],
                                                Halves b0, Halves b1) {
  if constexpr (!ONCE) {  // else a product of what TF32 holds will do
    multiply(0.0f, c, low, b0.high, b1.high);
    multiply(0.0f, c, high, b0.low, b1.low);
  }
  multiply(0.0f, c, high, b0.high, b1.high);
}

// Products of a warp's 16 queries with N keys, and of their weights with values, in sixteen bits. Queries of up to HELD
// elements stay in registers.
template <class T, int D, int E, int N, int HELD = 128, bool ONCE = false> struct Warp {
  static constexpr int V = 8, DP = whole(D, 16), EP = whole(E, 16), LD = DP + V, LE = EP + V;
  uint32_t kept[DP <= HELD ? DP / 16 : 1][4];
  const T* queries;
  __device__ __forceinline__ void begin(const T* rows) {
    queries = rows + threadIdx.x % 16 * LD + threadIdx.x % 32 / 16 * 8;
    if constexpr (DP <= HELD)
#pragma unroll
      for (int k = 0; k < DP / 16; ++k) four(kept[k], queries + k * 16);
  }
  __device__ __forceinline__ void scores(float (&s)[N / 8][4], const T* keys) {
    const int lane = threadIdx.x % 32;
    const T* const at = keys + (lane / 16 * 8 + lane % 8) * LD + lane / 8 % 2 * 8;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll
    for (int k = 0; k < DP / 16; ++k) {
      uint32_t a[4], b[4];
      if constexpr (DP > HELD) four(a, queries + k * 16);
#pragma unroll
      for (int j = 0; j < N / 16; ++j) {
        four(b, at + j * 16 * LD + k * 16);
        if constexpr (DP > HELD) {
          multiply(T(0.0f), s[2 * j], a, b[0], b[1]), multiply(T(0.0f), s[2 * j + 1], a, b[2], b[3]);
        } else {
          multiply(T(0.0f), s[2 * j], kept[k], b[0], b[1]), multiply(T(0.0f), s[2 * j + 1], kept[k], b[2], b[3]);
        }
      }
    }
  }
  __device__ __forceinline__ void weigh(float (&o)[EP / 8][4], const float (&p)[N / 8][4], const T* values) {
    const int lane = threadIdx.x % 32;
    const T* const at = values + (lane / 8 % 2 * 8 + lane % 8) * LE + lane / 16 * 8;
#pragma unroll
    for (int j = 0; j < N / 16; ++j) {
      uint32_t a[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i] = packed(T(0.0f), p[2 * j + i / 2][i % 2 * 2], p[2 * j + i / 2][i % 2 * 2 + 1]);
#pragma unroll
      for (int e = 0; e < EP / 16; ++e) {
        uint32_t b[4];
        four_turned(b, at + j * 16 * LE + e * 16);
        multiply(T(0.0f), o[2 * e], a, b[0], b[1]), multiply(T(0.0f), o[2 * e + 1], a, b[2], b[3]);
      }
    }
  }
};

// The same in fp32, one product of TF32 or three of halves each; sums of 32 terms join in fp32, since tensor cores
// truncate.
template <int D, int E, int N, int HELD, bool ONCE> struct Warp<float, D, E, N, HELD, ONCE> {
  static constexpr int V = 4, DP = whole(D, 16), EP = whole(E, 16), LD = DP + V, LE = EP + V;
  static constexpr int TERMS = DP % 32 ? 16 : 32;
  static constexpr bool KEPT = ONCE && DP <= HELD;
  uint32_t kept[KEPT ? DP / 8 : 1][4];
  const float* queries;
  __device__ __forceinline__ void begin(const float* rows) {
    queries = rows + threadIdx.x % 16 * LD + threadIdx.x % 32 / 16 * 4;
    if constexpr (KEPT)
#pragma unroll
      for (int k = 0; k < DP / 8; ++k) {
        four(kept[k], queries + k * 8);
#pragma unroll
        for (int i = 0; i < 4; ++i) kept[k][i] = halves_of(__uint_as_float(kept[k][i])).high;
      }
  }
  __device__ __forceinline__ void scores(float (&s)[N / 8][4], const float* keys) {
    const int lane = threadIdx.x % 32;
    const float* const at = keys + (lane / 16 * 8 + lane % 8) * LD + lane / 8 % 2 * 4;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
#pragma unroll(KEPT ? DP / TERMS : 1)
    for (int k0 = 0; k0 < DP; k0 += TERMS) {
      float part[N / 8][4] = {};
#pragma unroll
      for (int k = 0; k < TERMS; k += 8) {
        uint32_t a[4] = {}, b[4], high[4], low[4];
        if constexpr (!KEPT) four(a, queries + k0 + k);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const Halves h = halves_of(__uint_as_float(a[i]));
          high[i] = KEPT ? kept[(k0 + k) / 8][i] : h.high, low[i] = h.low;
        }
#pragma unroll
        for (int j = 0; j < N / 8; j += 2) {
          four(b, at + j * 8 * LD + k0 + k);
          Halves of[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) of[i] = halves_of(__uint_as_float(b[i]));
          multiply_halves<ONCE>(part[j], high, low, of[0], of[1]);
          multiply_halves<ONCE>(part[j + 1], high, low, of[2], of[3]);
        }
      }
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[j][i] += part[j][i];
    }
  }
  __device__ __forceinline__ void weigh(float (&o)[EP / 8][4], const float (&p)[N / 8][4], const float* values) {
    // A sum may take its terms in any order: term q of eight is key 2 q, term q + 4 is key 2 q + 1, as scores lie.
    const float* const at = values + threadIdx.x % 4 * 2 * LE + threadIdx.x % 32 / 4;
    uint32_t high[N / 8][4], low[N / 8][4];
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const Halves h = halves_of(p[j][i % 2 * 2 + i / 2]);
        high[j][i] = h.high, low[j][i] = h.low;
      }
#pragma unroll
    for (int e = 0; e < EP / 8; ++e) {
      float part[4] = {};
#pragma unroll
      for (int j = 0; j < N / 8; ++j) {
        const float* const b = at + j * 8 * LE + e * 8;
        multiply_halves<ONCE>(part, high[j], low[j], halves_of(b[0]), halves_of(b[LE]));
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) o[e][i] += part[i];
    }
  }
};

// One block: ROWS queries from `row0` meet keys from `low` to `high`. Warps share the queries, and where these are few
// the keys of a tile; what they found meets at the end. Differences of scores, times `unit`, are powers of two; `give`
// gets a row's sums.
template <class T, int D, int E, int KEYS, int ROWS, int STAGES, int FAST, bool ONCE, class Query, class Key,
          class Value, class Score, class First, class End, class Give>
__device__ __forceinline__ void run(char* memory, int64_t rows, int64_t keys, int64_t row0, int64_t low, int64_t high,
                                    Query query, Key key, Value value, Score score, First first, End end, float unit,
                                    Give give) {
  constexpr int V = 16 / sizeof(T), EP = whole(E, 16), LD = whole(D, 16) + V, LE = EP + V;
  constexpr int ROW_WARPS = ROWS / 16, N = KEYS / (4 / ROW_WARPS);
  T* const q = (T*)memory;
  T* const k = q + ROWS * LD;
  T* const v = k + STAGES * KEYS * LD;
  const int warp = threadIdx.x / 32, quad = threadIdx.x % 4, band = warp % ROW_WARPS * 16, part = warp / ROW_WARPS * N;
  const int64_t last = rows - 1, i0 = row0 + band;
  const int64_t mine[2] = {i0 + threadIdx.x % 32 / 4 < last ? i0 + threadIdx.x % 32 / 4 : last,
                           i0 + threadIdx.x % 32 / 4 + 8 < last ? i0 + threadIdx.x % 32 / 4 + 8 : last};
  const int64_t from[2] = {first(mine[0]), first(mine[1])}, to[2] = {end(mine[0]), end(mine[1])};
  const int64_t inside = first(i0 + 15 < last ? i0 + 15 : last), outside = end(i0 < last ? i0 : last);
  Warp<T, D, E, N, 128, ONCE> products;
  float o[EP / 8][4] = {}, top[2] = {-INFINITY, -INFINITY};
  typename Total<T>::type all[2] = {0, 0};
  const auto bring_tile = [&](int64_t n0, int stage) {
    fill<T, D, FAST>(k + stage * KEYS * LD, KEYS, keys - n0, [&](int i) { return key(n0 + i); });
    fill<T, E, FAST>(v + stage * KEYS * LE, KEYS, keys - n0, [&](int i) { return value(n0 + i); });
    close();
  };
  fill<T, D, FAST>(q, ROWS, rows - row0, [&](int i) { return query(row0 + i); });
  close();
  if (STAGES == 2 && low < high) bring_tile(low, 0), await<1>();
  else await<0>();
  __syncthreads();
  products.begin(q + band * LD);
  int stage = 0;
  for (int64_t n0 = low; n0 < high; n0 += KEYS) {
    if (STAGES == 1) bring_tile(n0, 0);
    if (STAGES == 2 && n0 + KEYS < high) bring_tile(n0 + KEYS, 1 - stage), await<1>();
    else await<0>();
    __syncthreads();
    float s[N / 8][4];
    products.scores(s, k + (stage * KEYS + part) * LD);
    const int64_t here = n0 + part;
    const bool free = here >= inside && here + N <= outside && here + N <= keys;
#pragma unroll
    for (int j = 0; j < N / 8; ++j)
#pragma unroll
      for (int c = 0; c < 4; ++c) {
        const int64_t n = here + j * 8 + quad * 2 + (c & 1);
        const bool seen = free || (n >= from[c >> 1] && n < to[c >> 1] && n < keys);
        s[j][c] = seen ? score(mine[c >> 1], n, s[j][c]) : -INFINITY;
      }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      float most = top[h];
#pragma unroll
      for (int j = 0; j < N / 8; ++j) most = fmaxf(most, fmaxf(s[j][2 * h], s[j][2 * h + 1]));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 1));
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, 2));
      const float base = most == -INFINITY ? 0.0f : most, shrink = power<T>((top[h] - base) * unit);
      float sum = 0.0f;
#pragma unroll
      for (int j = 0; j < N / 8; ++j)
#pragma unroll
        for (int c = 2 * h; c < 2 * h + 2; ++c) {
          s[j][c] = power<T>((s[j][c] - base) * unit);
          sum += s[j][c];
        }
      all[h] = all[h] * shrink + sum;
      top[h] = most;
#pragma unroll
      for (int e = 0; e < EP / 8; ++e) o[e][2 * h] *= shrink, o[e][2 * h + 1] *= shrink;
    }
    products.weigh(o, s, v + (stage * KEYS + part) * LE);
    __syncthreads();
    if (STAGES == 2) stage = 1 - stage;
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    all[h] += __shfl_xor_sync(0xffffffffu, all[h], 1);
    all[h] += __shfl_xor_sync(0xffffffffu, all[h], 2);
  }
  if constexpr (ROW_WARPS < 4) {  // warps that had other keys of the same queries
    __syncthreads();
    constexpr int WIDE = EP + 4;
    float* const board = (float*)memory;
    const int row = threadIdx.x % 32 / 4;
    for (int h = 0; h < 2; ++h) {
      float* const to_row = board + (warp * 16 + row + 8 * h) * WIDE;
      if (quad == 0) to_row[EP] = top[h], to_row[EP + 1] = float(all[h]);
      for (int e = 0; e < EP / 8; ++e)
        for (int c = 0; c < 2; ++c) to_row[e * 8 + quad * 2 + c] = o[e][2 * h + c];
    }
    __syncthreads();
    if (warp >= ROW_WARPS) return;
    for (int h = 0; h < 2; ++h) {
      const float* const at = board + (warp * 16 + row + 8 * h) * WIDE;
      float most = -INFINITY;
      for (int w = 0; w < 4 / ROW_WARPS; ++w) most = fmaxf(most, at[w * ROWS * WIDE + EP]);
      all[h] = 0, top[h] = most;
      for (int e = 0; e < EP / 8; ++e) o[e][2 * h] = o[e][2 * h + 1] = 0.0f;
      for (int w = 0; w < 4 / ROW_WARPS; ++w) {
        const float* const their = at + w * ROWS * WIDE;
        const float share = power<float>((their[EP] - (most == -INFINITY ? 0.0f : most)) * unit);
        all[h] += their[EP + 1] * share;
        for (int e = 0; e < EP / 8; ++e)
          for (int c = 0; c < 2; ++c) o[e][2 * h + c] += their[e * 8 + quad * 2 + c] * share;
      }
    }
  }
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int64_t i = i0 + threadIdx.x % 32 / 4 + 8 * h;
    if (i >= rows) continue;
    const float share = float(1 / all[h]);
#pragma unroll
    for (int e = 0; e < EP / 8; ++e)
#pragma unroll
      for (int c = 0; c < 2; ++c)
        if (e * 8 + quad * 2 + c < E) give(i, e * 8 + quad * 2 + c, o[e][2 * h + c], top[h], float(all[h]), share);
  }
}

// A row whose keys were split: `tops` and `sums` of its parts, whose products with values lie behind each other.
template <int E, class Give>
__device__ __forceinline__ void join(const float* tops, const float* sums, const float* parts, int splits, float unit,
                                     Give give) {
  float most = -INFINITY;
  for (int s = 0; s < splits; ++s) most = fmaxf(most, tops[s]);
  const float base = most == -INFINITY ? 0.0f : most;
  for (int e = threadIdx.x; e < E; e += 128) {
    float all = 0.0f, sum = 0.0f;
    for (int s = 0; s < splits; ++s) {
      const float share = exp2f((tops[s] - base) * unit);
      all += sums[s] * share, sum += parts[s * E + e] * share;
    }
    give(e, sum, most, all);
  }
}

// In how many parts the keys are taken so that blocks fill the device.
inline int64_t splits_of(int64_t blocks, int64_t tiles) {
  int device = 0, processors = 132;
  cudaGetDevice(&device);
  cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  int64_t splits = 1;
  while (2 * blocks * splits < 6 * processors && tiles >= 8 * splits) splits *= 2;
  return splits;
}
}  // namespace attend
"""
