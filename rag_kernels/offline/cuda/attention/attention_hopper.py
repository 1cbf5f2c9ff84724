"""Attention in CUDA on Hopper: a producer warp brings tiles by TMA, warpgroups multiply them by wgmma, 64 queries each.

Comes in: a `CudaAttention`. Goes out: its second kernel with the launch, and the condition at a call under which it
serves. The scores of the next keys are multiplied while the last ones are weighed with values, and a tile's softmax
runs beside that product. Tiles with the most keys come first, heads in groups whose keys and values fit in L2.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.cuda.attention.head_maps import MOST_OUTER, HeadMaps
from rag_kernels.offline.cuda.needs import SHORT_NAMES, Needs
from rag_kernels.offline.ir.parameters import c_name

if TYPE_CHECKING:
    from rag_kernels.offline.cuda.attention.attention import CudaAttention

ROOM = 227 << 10  # bytes of shared memory of a block
SPARE = 1024 + 512  # for alignment, and for barriers
KEYS = (128, 96, 64)  # of a tile: the most that fit
NEARLY = 1.15  # rows of tiles of three warpgroups beside those of two, at which three are taken
LN2 = "0.6931471805599453f"
REGISTERS = 176  # of a thread, for its sums of values, a tile's scores, and these as weights

BODY = """\
  constexpr int ROWS = 64 * GROUPS, CHUNKS = (D + 63) / 64, V_CHUNKS = (E + 63) / 64;
  constexpr int Q_BYTES = ROWS * CHUNKS * 128, K_BYTES = KEYS * CHUNKS * 128, V_BYTES = KEYS * V_CHUNKS * 128;
  constexpr int Q_ROOM = ROWS * (CHUNKS < V_CHUNKS ? V_CHUNKS : CHUNKS) * 128;  // results go out through it
  extern __shared__ float shared[];
  const uint32_t q0 = (rk::tma_address(shared) + 1023) & ~1023u, k0 = q0 + QUERIES * Q_ROOM;
  const uint32_t v0 = k0 + STAGES * K_BYTES;
  __shared__ __align__(8) uint64_t bars[4 * STAGES + 2 * QUERIES];
  const uint32_t k_full = rk::tma_address(bars), k_empty = k_full + 8 * STAGES, v_full = k_empty + 8 * STAGES;
  const uint32_t v_empty = v_full + 8 * STAGES, q_full = v_empty + 8 * STAGES, q_empty = q_full + 8 * QUERIES;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      rk::mbarrier_init(k_full + 8 * s, 1), rk::mbarrier_init(v_full + 8 * s, 1);
      rk::mbarrier_init(k_empty + 8 * s, GROUPS), rk::mbarrier_init(v_empty + 8 * s, GROUPS);
    }
    for (int s = 0; s < QUERIES; ++s) rk::mbarrier_init(q_full + 8 * s, 1), rk::mbarrier_init(q_empty + 8 * s, GROUPS);
    rk::mbarrier_publish();
  }
  __syncthreads();
  const int across = (rows + ROWS - 1) / ROWS, tiles = across * heads;
  const auto place = [&](int t, int& row0, int& head) {
    const int first = t / (together * across) * together, in = t % (together * across);
    const int wide = heads - first < together ? heads - first : together;
    head = first + in % wide, row0 = (across - 1 - in / wide) * ROWS;
  };
  const auto tiles_of_keys = [&](int row0, int& low, int& high) {
    const int until = row0 + ROWS < rows ? row0 + ROWS - 1 : rows - 1;
    low = int(attend::most_of(of_first(row0), int64_t(0))) / KEYS;
    high = int((attend::least_of(of_end(until), int64_t(keys)) + KEYS - 1) / KEYS);
    if (high < low) high = low;
  };
  int it = 0, tile = 0;
  if (group == 0) {
    rk::fewer_registers<GROUPS == 2 ? 24 : 32>();
    if (threadIdx.x == 0)
      for (int t = blockIdx.x; t < tiles; t += gridDim.x, ++tile) {
        int row0, head, low, high;
        place(t, row0, head);
HEAD_INDICES
        tiles_of_keys(row0, low, high);
        const int qs = tile % QUERIES;
        if (tile >= QUERIES) rk::mbarrier_wait(q_empty + 8 * qs, (tile / QUERIES - 1) & 1);
        rk::mbarrier_expect(q_full + 8 * qs, Q_BYTES);
        for (int c = 0; c < CHUNKS; ++c)
          rk::tma_load(&map_q, q0 + qs * Q_ROOM + c * ROWS * 128, q_full + 8 * qs, c * 64, row0, PLACE_Q);
        for (int j = low; j < high; ++j, ++it) {
          const int s = it % STAGES, parity = (it / STAGES - 1) & 1;
          if (it >= STAGES) rk::mbarrier_wait(k_empty + 8 * s, parity);
          rk::mbarrier_expect(k_full + 8 * s, K_BYTES);
          for (int c = 0; c < CHUNKS; ++c)
            rk::tma_load(&map_k, k0 + s * K_BYTES + c * KEYS * 128, k_full + 8 * s, c * 64, j * KEYS, PLACE_K);
          if (it >= STAGES) rk::mbarrier_wait(v_empty + 8 * s, parity);
          rk::mbarrier_expect(v_full + 8 * s, V_BYTES);
          for (int c = 0; c < V_CHUNKS; ++c)
            rk::tma_load(&map_v, v0 + s * V_BYTES + c * KEYS * 128, v_full + 8 * s, c * 64, j * KEYS, PLACE_V);
        }
      }
    return;
  }
  rk::more_registers<GROUPS == 2 ? 240 : 160>();
  const int mine = group - 1;
  const bool leader = threadIdx.x % 128 == 0;
  if (IN_TURN && mine == 1) rk::group_arrive<256>(4);
  float s[KEYS / 2], o[E / 2];
  uint32_t p[KEYS / 16][4];
  for (int t = blockIdx.x; t < tiles; t += gridDim.x, ++tile) {
    int row0, head, low, high;
    place(t, row0, head);
HEAD_INDICES
    tiles_of_keys(row0, low, high);
SCORE
    const int qs = tile % QUERIES, i0 = row0 + mine * 64, i1 = i0 + 63 < rows ? i0 + 63 : rows - 1, count = high - low;
    const uint32_t qw = q0 + qs * Q_ROOM + mine * 8192;
    const int r = i0 + warp * 16 + lane / 4;
    const int mine_of[2] = {r < rows ? r : rows - 1, r + 8 < rows ? r + 8 : rows - 1};
    const int inside = int(attend::least_of(of_first(i1), int64_t(keys)));
    const int outside = int(attend::least_of(of_end(i0 < rows ? i0 : rows - 1), int64_t(keys)));
    float top[2] = {-INFINITY, -INFINITY}, sum[2] = {0.0f, 0.0f}, shrink[2];
    rk::mbarrier_wait(q_full + 8 * qs, (tile / QUERIES) & 1);
    const auto softmax = [&](int j) {
      const int n0 = (low + j) * KEYS, c0 = n0 + lane % 4 * 2;
      const bool free = n0 >= inside && n0 + KEYS <= outside && n0 + KEYS <= keys;
      if (!PLAIN) {
#pragma unroll
        for (int i = 0; i < KEYS / 2; ++i) {
          const int n = c0 + i / 4 * 8 + (i & 1);
          s[i] = free || n < keys ? of_score(mine_of[(i >> 1) & 1], n, s[i]) : -INFINITY;
        }
      }
      if (!free) {
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int from = int(attend::least_of(of_first(mine_of[h]), int64_t(keys)));
          const int to = int(attend::least_of(of_end(mine_of[h]), int64_t(keys)));
#pragma unroll
          for (int i = 0; i < KEYS / 2; ++i) {
            const int n = c0 + i / 4 * 8 + (i & 1);
            if (((i >> 1) & 1) == h && (n < from || n >= to)) s[i] = -INFINITY;
          }
        }
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float m = top[h];
#pragma unroll
        for (int i = 0; i < KEYS / 8; ++i) m = fmaxf(m, fmaxf(s[4 * i + 2 * h], s[4 * i + 2 * h + 1]));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 1));
        m = fmaxf(m, __shfl_xor_sync(0xffffffffu, m, 2));
        const float base = m == -INFINITY ? 0.0f : PLAIN ? m * of_products : m;
        shrink[h] = attend::two_to(PLAIN ? fmaf(top[h], of_products, -base) : top[h] - base);
        top[h] = m;
        float add = 0.0f;
#pragma unroll
        for (int i = 0; i < KEYS / 8; ++i) {
#pragma unroll
          for (int c = 4 * i + 2 * h; c < 4 * i + 2 * h + 2; ++c) {
            s[c] = attend::two_to(PLAIN ? fmaf(s[c], of_products, -base) : s[c] - base);
            add += s[c];
          }
        }
        sum[h] = fmaf(sum[h], shrink[h], add);
      }
    };
    const auto keep = [&] {
#pragma unroll
      for (int i = 0; i < KEYS / 16; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) p[i][c] = attend::packed(NUMBER(0.0f), s[8 * i + 2 * c], s[8 * i + 2 * c + 1]);
    };
    const auto begin_scores = [&](int i) {
      const int st = i % STAGES;
      rk::mbarrier_wait(k_full + 8 * st, (i / STAGES) & 1);
      rk::wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < D / 16; ++kk)
        MULTIPLY_SCORES(s, rk::wgmma_descriptor(qw + kk / 4 * ROWS * 128 + kk % 4 * 32, 16, 1024),
                        rk::wgmma_descriptor(k0 + st * K_BYTES + kk / 4 * KEYS * 128 + kk % 4 * 32, 16, 1024), kk);
      rk::wgmma_commit();
    };
    const auto begin_weigh = [&](int i) {
      const int st = i % STAGES;
      rk::mbarrier_wait(v_full + 8 * st, (i / STAGES) & 1);
      rk::wgmma_fence();
#pragma unroll
      for (int kk = 0; kk < KEYS / 16; ++kk)
        MULTIPLY_VALUES(o, p[kk], rk::wgmma_descriptor(v0 + st * V_BYTES + kk * 2048, KEYS * 128, 1024), 1);
      rk::wgmma_commit();
    };
#pragma unroll
    for (int i = 0; i < E / 2; ++i) o[i] = 0.0f;
    if (count > 0) {
      begin_scores(it);
      rk::wgmma_wait<0>();
      rk::wgmma_hold(s);
      if (leader) rk::mbarrier_arrive(k_empty + 8 * (it % STAGES));
      softmax(0);
      keep();
      for (int j = 1; j < count; ++j) {
        if (IN_TURN) rk::group_sync<256>(4 + mine);
        begin_scores(it + j);
        begin_weigh(it + j - 1);
        if (IN_TURN) rk::group_arrive<256>(5 - mine);
        rk::wgmma_wait<1>();
        rk::wgmma_hold(s);
        if (leader) rk::mbarrier_arrive(k_empty + 8 * ((it + j) % STAGES));
        softmax(j);
        rk::wgmma_wait<0>();
        rk::wgmma_hold(o);
        if (leader) rk::mbarrier_arrive(v_empty + 8 * ((it + j - 1) % STAGES));
#pragma unroll
        for (int i = 0; i < E / 2; ++i) o[i] *= shrink[(i >> 1) & 1];
        keep();
      }
      begin_weigh(it + count - 1);
      rk::wgmma_wait<0>();
      rk::wgmma_hold(o);
      if (leader) rk::mbarrier_arrive(v_empty + 8 * ((it + count - 1) % STAGES));
    }
    it += count;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 1);
      sum[h] += __shfl_xor_sync(0xffffffffu, sum[h], 2);
      shrink[h] = 1.0f / sum[h];
TOTALS
#pragma unroll
      for (int i = 0; i < E / 2; ++i)
        if (((i >> 1) & 1) == h) o[i] = sum[h] == 0.0f ? EMPTY : o[i] * shrink[h];
    }
    // Out through the shared memory of these 64 queries, which nobody reads any more.
    rk::group_sync<128>(group);
#pragma unroll
    for (int i = 0; i < E / 8; i += 2) {
      const int row = warp * 16 + lane % 16, chunk = i % 8 + lane / 16;
      uint32_t four[4];
#pragma unroll
      for (int c = 0; c < 4; ++c) four[c] = attend::packed(NUMBER(0.0f), o[4 * i + 2 * c], o[4 * i + 2 * c + 1]);
      rk::stmatrix_x4(qw + i / 8 * ROWS * 128 + row * 128 + ((chunk ^ (row & 7)) * 16), four);
    }
    rk::tma_publish();
    rk::group_sync<128>(group);
    if (leader) {
      if (i0 < rows)
        for (int c = 0; c < V_CHUNKS; ++c) rk::tma_store(&map_out, qw + c * ROWS * 128, c * 64, i0, PLACE_OUT);
      rk::store_commit();
      rk::store_wait_read<0>();
      rk::mbarrier_arrive(q_empty + 8 * qs);
    }
  }
  if (IN_TURN && mine == 0) rk::group_sync<256>(4);  // nobody waits at its end
  if (leader) rk::store_wait<0>();
"""


class HopperAttention:
    """Prints the second kernel of an attention."""

    def __init__(self, attention: CudaAttention, *, keys: int = 0, in_turn: int = 1) -> None:
        self.of, self.nest = attention, attention.nest
        self.depth, self.columns = attention.depth, attention.columns
        chunks, of_values = -(-self.depth // 64), -(-self.columns // 64)
        self.groups = 3 if chunks == of_values == 1 and attention.nest.factor is not None and self.fills(3) else 2
        self.in_turn = int(in_turn and self.groups == 2)
        queries, key = 64 * self.groups * max(chunks, of_values) * 128, (chunks + of_values) * 128
        left = ROOM - SPARE - queries
        fits = [n for n in KEYS if 2 * n * key <= left and self.columns // 2 + n * 3 // 4 <= REGISTERS]
        self.keys = keys or next(iter(fits), KEYS[-1])
        pair = self.keys * key
        self.queries = 2 if left - queries >= 2 * pair else 1
        self.stages = min(4, (ROOM - SPARE - self.queries * queries) // pair)
        self.shared = self.queries * queries + self.stages * pair + 1024
        self.outer = (*self.nest.batch, *self.nest.rows[1:])
        self.around = HeadMaps(self.nest, self.outer)

    def fills(self, groups: int) -> bool:
        """Return whether the rows of tiles of so many warpgroups are nearly all there are, as those of two would be."""
        rows = self.nest.rows[0].size if self.nest.rows else 0
        most, two = (-(-rows // tile) * tile for tile in (64 * groups, 128))
        return most <= NEARLY * two

    def serves(self) -> bool:
        """Return whether there is such a kernel for this attention."""
        of, a, nest = self.of, self.of.region.attended, self.nest
        one = nest.rows and len(nest.keys) == 1 and len(self.outer) <= MOST_OUTER and nest.rows[0].size >= 64
        same = of.sixteen and a.storage == a.q.storage and of.depth % 16 == of.columns % 16 == 0
        return bool(
            one and same and self.stages >= 2 and of.index == "int" and nest.stride(nest.out, nest.columns) == "1"
        )

    def maps(self) -> tuple[list[str], str]:
        """Return declarations of the maps of all tensors, and the condition under which they can be made."""
        a, nest = self.of.region.attended, self.nest
        row, key = nest.rows[0], nest.keys[0]
        pointers = {n: value for _, n, value in self.of.parameters()}
        made = [
            self.around.map(f"map_{name}", pointers[c_name(buffer) + "_p"], access, leaf, box=box, width=width)
            for name, buffer, access, leaf, box, width in (
                ("q", a.q.buffer, nest.q, row, 64 * self.groups, self.depth),
                ("k", a.k.buffer, nest.k, key, self.keys, self.depth),
                ("v", a.v.buffer, nest.v, key, self.keys, self.columns),
                ("out", a.buffer, nest.out, row, 64, self.columns),
            )
        ]
        return [line for line, _ in made], " && ".join(condition for _, condition in made)

    def note(self, needs: Needs) -> None:
        """Note what the kernel calls."""
        needs.copy_engine = True
        needs.columns |= {self.keys, self.columns}

    def totals(self) -> list[str]:
        """Return the statements that store the logsumexp of the scores of a thread's rows, where that is wanted."""
        if not self.of.region.attended.total:
            return []
        top = f"top[h] * of_products * {LN2}" if self.nest.factor is not None else "top[h]"
        row = self.nest.index(self.nest.rows[0])
        return [
            f"const int64_t {row} = r + 8 * h;",
            f"if (lane % 4 == 0 && {row} < rows) {self.of.total(top, 'sum[h]')}",
        ]

    def text(self, name: str, declared: str, given: str) -> tuple[list[str], list[str], str]:
        """Return the kernel, the statements that launch it, and the condition under which it serves."""
        of, nest, a, names = self.of, self.nest, self.of.region.attended, self.of.names
        numbers = SHORT_NAMES[a.q.storage]
        plain = nest.factor is not None
        row = [f"const int64_t {nest.index(nest.rows[0])} = i;"]
        limits = of.limits()
        heads = nest.apart("head", self.outer, "const int")
        heads += [f"limit{n} = {text};" for n, text in enumerate(limits)]
        maps, can = self.maps()
        body = BODY.replace("HEAD_INDICES", "\n".join(f"        {line}" for line in heads))
        scale = [f"const float of_products = float({nest.scale()} * 1.4426950408889634);"] if plain else []
        score = of.score(row, nest.apart("n", nest.keys)) if not plain else []
        body = body.replace("SCORE\n", "".join(f"    {line}\n" for line in score))
        for letter, access in (("Q", nest.q), ("K", nest.k), ("V", nest.v), ("OUT", nest.out)):
            body = body.replace(f"PLACE_{letter}", self.around.place(access))
        body = body.replace("MULTIPLY_SCORES", f"rk::wgmma_{numbers}")
        body = body.replace("MULTIPLY_VALUES", f"rk::wgmma_{numbers}<1>")
        body = body.replace("NUMBER(", f"{of.type}(").replace("EMPTY", "NAN" if a.empty != a.empty else f"{a.empty!r}f")
        if plain:
            body = body.replace("of_score(mine_of[(i >> 1) & 1], n, s[i])", "s[i]")
        else:
            body = body.replace("PLAIN ? m * of_products : m", "m")
            for value in ("top[h]", "s[c]"):
                text = f"PLAIN ? fmaf({value}, of_products, -base) : {value} - base"
                body = body.replace(text, f"({value} - base) * {of.unit}")
        body = body.replace("TOTALS\n", "".join(f"      {line}\n" for line in self.totals()))
        rows, keys = names[nest.rows[0]], names[nest.keys[0]]
        constants = (
            f"D = {self.depth}, E = {self.columns}, KEYS = {self.keys}, GROUPS = {self.groups}, STAGES = {self.stages}"
        )
        constants += f", QUERIES = {self.queries}, IN_TURN = {self.in_turn}, PLAIN = {int(plain)}"
        kernel = [
            f"__global__ void __launch_bounds__({128 * (self.groups + 1)}, 1)",
            f"{name}_hopper(const __grid_constant__ CUtensorMap map_q, const __grid_constant__ CUtensorMap map_k,",
            "    const __grid_constant__ CUtensorMap map_v, const __grid_constant__ CUtensorMap map_out,",
            f"    {declared}, int heads, int together) {{",
            "#ifdef RK_ON_HOPPER",
            f"  constexpr int {constants};",
            f"  const int rows = {rows}, keys = {keys};",
            *indent([*scale, *(f"int64_t limit{n} = 0;" for n in range(len(limits))), *nest.bounds(row)]),
            body + "#endif",
            "}",
        ]
        heads_text = names.product(self.outer)
        launch = [
            *maps,
            f"const int heads = int({heads_text}), across = ({rows} + {64 * self.groups - 1}) / {64 * self.groups};",
            "// So many heads have keys and values that fit in L2.",
            f"const int fitting = (24 << 20) / ({keys} * {2 * (self.depth + self.columns)} + 1);",
            "const int together = int(attend::most_of(1, attend::least_of(heads, fitting)));",
            f"cudaFuncSetAttribute({name}_hopper, cudaFuncAttributeMaxDynamicSharedMemorySize, {self.shared});",
            "const int most_blocks = rk::processors(), wanted = across * heads;",
            "const int blocks = wanted < most_blocks ? wanted : most_blocks;",
            f"{name}_hopper<<<blocks, {128 * (self.groups + 1)}, {self.shared}, stream>>>"
            f"(map_q, map_k, map_v, map_out, {given}, heads, together);",
        ]
        positive = f"{nest.scale()} > 0 && " if plain else ""
        return kernel, launch, f"built && {positive}{rows} >= 64 && {can}"
