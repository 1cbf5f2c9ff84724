"""The fixed part of CUDA products on Hopper: a ring of tiles fed by the copy engine, and the warpgroups that multiply.

Names in capitals are constants of a kernel (`gemm_wgmma.py`); KIND is the type of indices.
"""

# Each item is a tile and one part of its depth; tiles run through bands, so that neighbours share what they load.
BEGIN = """\
extern __shared__ float shared[];
__shared__ __align__(8) uint64_t bars[2 * STAGES + 2];
const uint32_t base = (rk::tma_address(shared) + 1023) & ~1023u, full = rk::tma_address(bars);
const uint32_t empty = full + 8 * STAGES, turns = empty + 8 * STAGES;
const int group = threadIdx.x / 128;
const uint32_t rank = CLUSTER > 1 ? rk::cluster_rank() : 0;
if (threadIdx.x == 0) {
  for (int s = 0; s < STAGES; ++s) {
    rk::mbarrier_init(full + 8 * s, 1);
    rk::mbarrier_init(empty + 8 * s, CLUSTER * GROUPS);
  }
  rk::mbarrier_init(turns, 1), rk::mbarrier_init(turns + 8, 1);
  rk::mbarrier_publish();
}
if (CLUSTER > 1) rk::cluster_sync();
else __syncthreads();
const uint32_t across = (of_left + ROWS * CLUSTER - 1) / (ROWS * CLUSTER), along = (of_right + WIDE - 1) / WIDE;
const uint32_t each = across * along, all = each * uint32_t(batches) * PHASES * parts;
uint32_t tile = 0;
KIND z = 0;
int row0 = 0, column0 = 0, begin = 0, end = 0;
const auto place = [&](uint32_t item) {
  tile = item / parts, z = tile / PHASES / each;
  const uint32_t t = tile / PHASES % each, band = t / (BAND * along), in = t % (BAND * along);
  const uint32_t tall = across - band * BAND < BAND ? across - band * BAND : BAND;
  row0 = ((band * BAND + in % tall) * CLUSTER + rank) * ROWS, column0 = in / tall * WIDE;
ITEM
};
const uint32_t first = blockIdx.x / CLUSTER, stride = gridDim.x / CLUSTER;"""

# The part of the depth of an item, or none where sums of parts are given...
ITEM = """\
  const int steps = (depth + DEPTH - 1) / DEPTH, chunk = (steps + parts - 1) / parts;
  begin = item % parts * chunk, end = given ? begin : begin + chunk < steps ? begin + chunk : steps;
"""

# ... and where phases have depths of their own; those of a tile come one after the other, since their results are
# neighbours in memory.
ITEM_OF_PHASE = """\
  int which = tile % PHASES;
PHASE
  const int steps = (TERMS + DEPTH - 1) / DEPTH, part = item % parts;
  begin = part * steps / parts, end = given ? begin : (part + 1) * steps / parts;
"""

# `s` is the stage in the ring, `round` how often the ring went around.
PRODUCER = """\
if (group == 0) {
  rk::fewer_registers<FEWER>();
  if (threadIdx.x == 0) {
    PREFETCH
    int s = 0, round = 0;
    for (uint32_t item = first; item < all; item += stride) {
      place(item);
BATCHES
      for (int k = begin; k < end; ++k) {
        if (round) rk::mbarrier_wait(empty + 8 * s, (round - 1) & 1);
        const uint32_t bar = full + 8 * s, left = base + s * STAGE, right = left + LEFT_BYTES;
        rk::mbarrier_expect(bar, BROUGHT);
LOADS
        if (++s == STAGES) s = 0, ++round;
      }
    }
    for (int i = 0; CLUSTER > 1 && i < STAGES; ++i) {  // other blocks still arrive at the barriers of this one
      if (round) rk::mbarrier_wait(empty + 8 * s, (round - 1) & 1);
      if (++s == STAGES) s = 0, ++round;
    }
  }
JOINED
} else {"""

# Where groups alternate, one multiplies a tile while the other stores one; else both have half of each tile's rows.
CONSUMER = """\
rk::more_registers<MORE>();
const int mine = group - 1, lane = threadIdx.x % 32;
float* const of_warps = shared + (base - rk::tma_address(shared) + STAGES * STAGE) / 4;
float* const staged = of_warps + (threadIdx.x / 32 - 4) * (16 * SKEW);
ROOM
float sums[BLOCKS][COLUMNS / 2];
int s = 0, round = 0, taken = 0;
for (uint32_t item = first, number = 0; item < all; item += stride, ++number) {
  place(item);
  const int count = end - begin;
  if (ALTERNATE && number % 2 != mine) {
    s += count, round += s / STAGES, s %= STAGES;
    continue;
  }
  if (ALTERNATE && (mine || taken)) rk::mbarrier_wait(turns + 8 * mine, (mine ? taken : taken - 1) & 1);
  ++taken;
  int before = 0;
TWICE
WALK
  if (ALTERNATE && threadIdx.x % 128 == 0) rk::mbarrier_arrive(turns + 8 * (1 - mine));
  rk::wgmma_wait<0>();
  release(before);
#pragma unroll
  for (int h = 0; h < BLOCKS; ++h) rk::wgmma_hold(sums[h]);"""

# A group's steps, one after the other...
WALK = """\
  for (int k = 0; k < count; ++k) {
    rk::mbarrier_wait(full + 8 * s, round & 1);
    const uint32_t left = base + s * STAGE + (ALTERNATE ? 0 : mine * BLOCKS * HIGH);
    const uint32_t right = base + s * STAGE + LEFT_BYTES;
STEP
    before = s;
    if (++s == STAGES) s = 0, ++round;
  }"""

# ... or in pairs, each of which has registers of its own for what it multiplies.
WALK_IN_PAIRS = """\
  uint32_t even[BLOCKS][4][4], odd[BLOCKS][4][4];
  const auto step = [&](int k, uint32_t (&of_thread)[BLOCKS][4][4]) {
    rk::mbarrier_wait(full + 8 * s, round & 1);
    const uint32_t left = base + s * STAGE + (ALTERNATE ? 0 : mine * BLOCKS * HIGH);
    const uint32_t right = base + s * STAGE + LEFT_BYTES;
STEP
    before = s;
    if (++s == STAGES) s = 0, ++round;
  };
  for (int k = 0; k < count; k += 2) {
    step(k, even);
    if (k + 1 < count) step(k + 1, odd);
  }"""

# Tensor cores cut off what they add: of a long depth sums are put aside after some steps, and added as fp32 does.
TWICE = "  float aside[BLOCKS][COLUMNS / 2] = {};\n"
ASIDE = """\
    if (k && k % CHAIN == 0) {
      rk::wgmma_wait<0>();
#pragma unroll
      for (int h = 0; h < BLOCKS; ++h) {
        rk::wgmma_hold(sums[h]);
#pragma unroll
        for (int u = 0; u < COLUMNS / 2; ++u) aside[h][u] += sums[h][u];
      }
    }
"""
TOGETHER = """
#pragma unroll
  for (int h = 0; h < BLOCKS; ++h)
#pragma unroll
    for (int u = 0; u < COLUMNS / 2; ++u) sums[h][u] += aside[h][u];"""

# A step's products, of which those of the step before may still run.
FROM_SHARED = """\
ASIDE
#pragma unroll
    for (int h = 0; h < BLOCKS; ++h) rk::wgmma_hold(sums[h]);
    rk::wgmma_fence();
#pragma unroll
    for (int q = 0; q < 4; ++q)
#pragma unroll
      for (int h = 0; h < BLOCKS; ++h) {
        const uint32_t of_a = q % FOLLOW * LEFT_STEP + q / FOLLOW * (ROWS * LINE);
        const uint32_t of_b = q % FOLLOW * RIGHT_STEP + q / FOLLOW * (COLUMNS * LINE);
        const uint64_t a = rk::wgmma_descriptor(left + h * HIGH + of_a, LEFT_LEADING, 8 * LINE, LINE);
        const uint64_t b = rk::wgmma_descriptor(right + of_b, RIGHT_LEADING, 8 * LINE, LINE);
        MULTIPLY(sums[h], a, b, FIRST | q);
      }
    rk::wgmma_commit();
    if (k) {
      rk::wgmma_wait<1>();
      release(before);
    }"""

# The same with a left factor whose lanes lie side by side, in slabs of 32 lanes and 32 terms: what a step needs is
# loaded while the products of the step before run.
FROM_REGISTERS = """\
#pragma unroll
    for (int h = 0; h < BLOCKS; ++h)
#pragma unroll
      for (int q = 0; q < 4; ++q)
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          const int lane_of = threadIdx.x % 128 / 32 * 16 + lane / 4 + u % 2 * 8, term = q * 8 + lane % 4 + u / 2 * 4;
          const uint32_t line = left + h * 8192 + lane_of / 32 * 4096 + term * 128;
          of_thread[h][q][u] = rk::shared_word(line + ((lane_of % 32 / 4 ^ term % 8) * 16 + lane_of % 4 * 4));
        }
ASIDE
#pragma unroll
    for (int h = 0; h < BLOCKS; ++h) rk::wgmma_hold(sums[h]);
    rk::wgmma_fence();
#pragma unroll
    for (int q = 0; q < 4; ++q)
#pragma unroll
      for (int h = 0; h < BLOCKS; ++h) {
        const uint64_t b = rk::wgmma_descriptor(right + q * RIGHT_STEP, RIGHT_LEADING, 1024);
        MULTIPLY(sums[h], of_thread[h][q], b, FIRST | q);
      }
    rk::wgmma_commit();
    if (k) {
      rk::wgmma_wait<1>();
      release(before);
    }"""

RELEASE = """\
const auto release = [&](int s) {  // the stage, to every block that fills it
  if (CLUSTER > 1) {
    if (threadIdx.x % 128 < CLUSTER) rk::mbarrier_arrive_at(empty + 8 * s, threadIdx.x % 128);
  } else if (threadIdx.x % 128 == 0) {
    rk::mbarrier_arrive(empty + 8 * s);
  }
};"""

# Where blocks of a cluster have a part of the depth each, all come to these meetings: the first says that sums are
# shown, the last (at the end) that nobody reads them any more.
MEET = """\
if (CONDITION) {
  __syncwarp();
  rk::cluster_sync();
}"""

# Who finishes some strips of a tile adds up the parts of these, always in the same order.
ADD = """\
  constexpr int STRIPS = BLOCKS * WIDE / PART;
  const auto from = [](int i, int u) {
    const int across = u / (PART / 2) * (WIDE / 2) + i % (WIDE / PART) * (PART / 2) + u % (PART / 2);
    return i / (WIDE / PART) * (COLUMNS / 2) + across;
  };
#pragma unroll
  for (int u = 0; u < EACH; ++u) sums[u / (COLUMNS / 2)][u % (COLUMNS / 2)] = 0;
#pragma unroll
  for (int i = 0; i < STRIPS; ++i)
    if (i / SHARE % parts == own)
#pragma unroll 4
      for (int p = 0; p < COUNT; ++p) {
        const float* const theirs = THEIRS;
#pragma unroll
        for (int u = 0; u < STRIP / 2; ++u)
          sums[from(i, u) / (COLUMNS / 2)][from(i, u) % (COLUMNS / 2)] += theirs[from(i, u) * 128];
      }
"""

# Blocks of a cluster show each other their sums, in the memory of the ring, which is free by then.
JOIN = (
    """\
const int own = item % parts;
if (parts > 1) {
  constexpr int EACH = BLOCKS * COLUMNS / 2;
  rk::group_sync<GROUPS * 128>(ALTERNATE ? group : GROUPS + 1);  // all have multiplied
  float* const mine_of = shared + (base - rk::tma_address(shared)) / 4 + (ALTERNATE ? 0 : mine) * (EACH * 128);
  float* const shown = mine_of + threadIdx.x % 128;
#pragma unroll
  for (int u = 0; u < EACH; ++u) shown[u * 128] = sums[u / (COLUMNS / 2)][u % (COLUMNS / 2)];
  rk::cluster_sync();
"""
    + ADD.replace("COUNT", "parts").replace("THEIRS", "rk::cluster_pointer(shown, p)")
    + "}"
)

# Else through the device's memory: one launch stores the sums of all parts, the next one is given them.
PARTS = (
    """\
const int own = item % parts;
if (parts > 1 || given) {
  constexpr int EACH = BLOCKS * COLUMNS / 2;
  const uint32_t slot = (tile * CLUSTER + rank) * GROUPS + (ALTERNATE ? 0 : mine);
  const int64_t step = int64_t(all / parts) * (CLUSTER * GROUPS * EACH * 128);
  float* const at = partial + int64_t(slot) * (EACH * 128) + threadIdx.x % 128;
  if (!given) {
#pragma unroll
    for (int u = 0; u < EACH; ++u) at[own * step + u * 128] = sums[u / (COLUMNS / 2)][u % (COLUMNS / 2)];
    continue;
  }
"""
    + ADD.replace("COUNT", "given").replace("THEIRS", "at + p * step")
    + "}"
)

# A warp's sixteen rows, STRIP columns at a time, through its part of shared memory: a thread gets several neighbours.
# Odd rows have each two groups of four columns exchanged, so that the lanes of two rows read from other banks.
# Exchanges by shuffles in place of that were much slower (docs/measured/sixteen_bit_products.md).
STRIPS = """\
constexpr int DOWN = 16, ACROSS = PART, PITCH = SKEW;  // what a warp has at a time
const auto exchanged = [](int row) { return row % 2 * 4; };
float* const of_lane = staged + lane / 4 * SKEW + (lane % 4 * 2 ^ lane / 4 % 2 * 4);
#pragma unroll 1
for (int strip = 0; strip < BLOCKS * WIDE / PART; ++strip) {
OWNED
  __syncwarp();
#pragma unroll
  for (int i = 0; i < BLOCKS * WIDE / PART; ++i)
    if (i == strip)
#pragma unroll
      for (int u = 0; u < STRIP / 2; u += 2) {
        const int from = u / (PART / 2) * (WIDE / 2) + i % (WIDE / PART) * (PART / 2) + u % (PART / 2);
        float2* const to = reinterpret_cast<float2*>(of_lane + u / 2 % 2 * 8 * SKEW + u / 4 * 8);
        *to = make_float2(sums[i / (WIDE / PART)][from], sums[i / (WIDE / PART)][from + 1]);
      }
  __syncwarp();
  const int block = (ALTERNATE ? 0 : mine * BLOCKS) + strip / (WIDE / PART);
  const int top = row0 + block * 64 + threadIdx.x % 128 / 32 * 16;
  const int from = column0 + strip % (WIDE / PART) * PART;
TAILS
}"""

# The same where rows and columns are exchanged: a warp has sixteen columns of the result.
STRIPS_TURNED = """\
constexpr int DOWN = STRIP, ACROSS = 16, PITCH = 20;
const auto exchanged = [](int) { return 0; };
#pragma unroll 1
for (int strip = 0; strip < BLOCKS * COLUMNS / STRIP; ++strip) {
OWNED
  __syncwarp();
#pragma unroll
  for (int i = 0; i < BLOCKS * COLUMNS / STRIP; ++i)
    if (i == strip)
#pragma unroll
      for (int u = 0; u < STRIP / 2; u += 2) {
        const float* const from = &sums[i / (COLUMNS / STRIP)][i % (COLUMNS / STRIP) * (STRIP / 2) + u];
        float* const to = staged + (u / 4 * 8 + lane % 4 * 2) * 20 + u / 2 % 2 * 8 + lane / 4;
        to[0] = from[0], to[20] = from[1];
      }
  __syncwarp();
  const int block = (ALTERNATE ? 0 : mine * BLOCKS) + strip / (COLUMNS / STRIP);
  const int top = column0 + strip % (COLUMNS / STRIP) * STRIP;
  const int from = row0 + block * 64 + threadIdx.x % 128 / 32 * 16;
TAILS
}"""

# Of a piece of DOWN rows and ACROSS columns a thread has NEXT neighbouring columns of a row, as many as are stored with
# sixteen bytes; the lanes' vectors go side by side. Nothing is asked about the places of a piece that lies inside, so
# that loads of several vectors are under way together...
SEVERAL = """\
const auto several = [&](int e) {
  const KIND row = top + e / (ACROSS / NEXT), column = COLUMN_OF_VECTOR;
  const float* const at = staged + e / (ACROSS / NEXT) * PITCH;
  const int in = e % (ACROSS / NEXT) * NEXT ^ exchanged(e / (ACROSS / NEXT));
  float sum[NEXT];
#pragma unroll
  for (int u = 0; u < NEXT; u += 4)
    *reinterpret_cast<float4*>(&sum[u]) = *reinterpret_cast<const float4*>(at + (in ^ u));
OTHER
TAIL
};
if (top + DOWN <= rows && ALL_INSIDE) {
#pragma unroll
  for (int i = 0; i < DOWN * ACROSS / NEXT / 32; ++i) several(lane + 32 * i);
} else {
#pragma unroll 1
  for (int e = lane; e < DOWN * ACROSS / NEXT; e += 32)
    if (top + e / (ACROSS / NEXT) < rows && COLUMN_OF_VECTOR < columns) several(e);
}"""

# ... or, where these cannot be stored at once, one column, of which it goes down the rows. What lies where results do
# is loaded for several rows before anything is made of it: registers are few here, and nobody else brings it forward.
ONE = """\
const KIND column = COLUMN_OF_LANE;
if (column < columns) {
COLUMN
EARLY
  const auto one = [&](int eAHEAD) {
    const KIND row = top + e;
    const float sum = staged[e * PITCH + (lane % ACROSS ^ exchanged(e))];
OTHER
TAIL
  };
  if (top + DOWN <= rows) {
WHOLE
  } else {
#pragma unroll 1
    for (int e = lane / ACROSS; e < DOWN && top + e < rows; e += 32 / ACROSS) PART_OF_ONE
  }
}"""
ROWS_OF_ONE = """\
#pragma unroll
    for (int i = 0; i < DOWN * ACROSS / 32; ++i) one(lane / ACROSS + 32 / ACROSS * i);"""
EARLY = """\
  const auto early = [&](int e, float* to) {
    const KIND row = top + e;
LOADS
  };"""
ROWS_WITH_EARLY = """\
#pragma unroll
    for (int h = 0; h < DOWN * ACROSS / 32; h += 4) {
      float ahead[4][COUNT];
#pragma unroll
      for (int i = 0; i < 4; ++i) early(lane / ACROSS + 32 / ACROSS * (h + i), ahead[i]);
#pragma unroll
      for (int i = 0; i < 4; ++i) one(lane / ACROSS + 32 / ACROSS * (h + i), ahead[i]);
    }"""
ROW_WITH_EARLY = """{
      float ahead[COUNT];
      early(e, ahead);
      one(e, ahead);
    }"""

# The sums of the second product lie beside those of the first.
OTHER = """\
  float other[NEXT];
#pragma unroll
  for (int u = 0; u < NEXT; u += 4)
    *reinterpret_cast<float4*>(&other[u]) = *reinterpret_cast<const float4*>(at + PART + (in ^ u));
"""
OTHER_ONE = "    const float other = staged[e * PITCH + PART + (lane % ACROSS ^ exchanged(e))];\n"
