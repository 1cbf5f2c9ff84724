"""Chained products in CUDA on Hopper: a producer warp brings tiles by TMA, two warpgroups multiply them by wgmma.

Comes in: a `CudaChain`. Goes out: its second kernel with the launch, and the condition at a call under which it
serves. A warpgroup keeps 64 rows, walks along the others, and has its sums in registers; weights go from the products
that they are computed of to those that take them without leaving registers. A second warp brings what is a number of
each row that is walked along. While one warpgroup multiplies, the other makes weights: wide tiles are better for that
than products of the next tile beside a tile's sums, and than turns (measured on an H200).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rag_kernels.offline.codegen.chained import Rows
from rag_kernels.offline.codegen.loop_nest import access_of
from rag_kernels.offline.codegen.operator_texts import on_gpu
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.cuda.attention.head_maps import MOST_OUTER, HeadMaps
from rag_kernels.offline.cuda.needs import SHORT_NAMES, Needs
from rag_kernels.offline.ir import values as ir

if TYPE_CHECKING:
    from rag_kernels.offline.cuda.attention.chained import CudaChain

GROUPS = 2  # warpgroups that multiply
ROOM = (227 << 10) - 1024 - 256  # bytes of shared memory of a block, without what alignment and barriers take
TILES = (128, 64, 32)  # rows of a tile, the most that fit
REGISTERS = 192  # of a thread, for sums and products
MOST_STAGES = 4

BODY = """\
  constexpr int ROWS = 64 * GROUPS;
  extern __shared__ float shared[];
  const uint32_t kept_base = (rk::tma_address(shared) + 1023) & ~1023u, tile_base = kept_base + KEPT * KEPT_BYTES;
  __shared__ __align__(8) uint64_t bars[2 * STAGES + 2 * KEPT];
OF_ROWS
  const uint32_t full = rk::tma_address(bars), empty = full + 8 * STAGES, kept_full = empty + 8 * STAGES;
  const uint32_t kept_empty = kept_full + 8 * KEPT;
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32, warp = threadIdx.x % 128 / 32;
  if (threadIdx.x == 0) {
    for (int s = 0; s < STAGES; ++s) {
      rk::mbarrier_init(full + 8 * s, NUMBERS ? 33 : 1), rk::mbarrier_init(empty + 8 * s, 4 * GROUPS);
    }
    for (int s = 0; s < KEPT; ++s) {
      rk::mbarrier_init(kept_full + 8 * s, 1), rk::mbarrier_init(kept_empty + 8 * s, 4 * GROUPS);
    }
    rk::mbarrier_publish();
  }
  __syncthreads();
  const int across = (rows + ROWS - 1) / ROWS, tiles = across * heads;
  const auto place = [&](int t, int& row0, int& head) {
    const int first = t / (together * across) * together, in = t % (together * across);
    const int wide = heads - first < together ? heads - first : together;
    head = first + in % wide, row0 = (LAST_FIRST ? across - 1 - in / wide : in / wide) * ROWS;
  };
  const auto tiles_of_keys = [&](int row0, int& low, int& high) {
    const int until = row0 + ROWS < rows ? row0 + ROWS - 1 : rows - 1;
    low = int(attend::most_of(of_first(row0), int64_t(0))) / WALKED;
    high = int((attend::least_of(of_end(until), int64_t(keys)) + WALKED - 1) / WALKED);
    if (high < low) high = low;
  };
  int it = 0, tile = 0;
  if (group == 0) {
    rk::fewer_registers<40>();
    if (threadIdx.x == 0) {
      for (int t = blockIdx.x; t < tiles; t += gridDim.x, ++tile) {
        int row0, head, low, high;
        place(t, row0, head);
HEAD_INDICES
        tiles_of_keys(row0, low, high);
        const int ks = tile % KEPT;
        if (tile >= KEPT) rk::mbarrier_wait(kept_empty + 8 * ks, (tile / KEPT - 1) & 1);
        rk::mbarrier_expect(kept_full + 8 * ks, KEPT_BYTES);
LOAD_KEPT
        for (int j = low; j < high; ++j, ++it) {
          const int s = it % STAGES;
          if (it >= STAGES) rk::mbarrier_wait(empty + 8 * s, (it / STAGES - 1) & 1);
          rk::mbarrier_expect(full + 8 * s, TILE_BYTES);
LOAD_TILES
        }
      }
    } else if (NUMBERS && warp == 1) {
      for (int t = blockIdx.x; t < tiles; t += gridDim.x) {
        int row0, head, low, high;
        place(t, row0, head);
HEAD_INDICES
        tiles_of_keys(row0, low, high);
        for (int j = low; j < high; ++j, ++it) {
          const int s = it % STAGES;
          if (it >= STAGES) rk::mbarrier_wait(empty + 8 * s, (it / STAGES - 1) & 1);
LOAD_NUMBERS
          rk::mbarrier_arrive(full + 8 * s);
        }
      }
    }
    return;
  }
  rk::more_registers<232>();
  const int mine = group - 1;
DECLARED
  for (int t = blockIdx.x; t < tiles; t += gridDim.x, ++tile) {
    int row0, head, low, high;
    place(t, row0, head);
HEAD_INDICES
    tiles_of_keys(row0, low, high);
WEIGHTS
    const int ks = tile % KEPT, i0 = row0 + mine * 64, i1 = i0 + 63 < rows ? i0 + 63 : rows - 1, count = high - low;
    const uint32_t kept_at = kept_base + ks * KEPT_BYTES + mine * 8192;
    const int r = i0 + warp * 16 + lane / 4;
    const int mine_of[2] = {r < rows ? r : rows - 1, r + 8 < rows ? r + 8 : rows - 1};
    const int from[2] = {int(of_first(mine_of[0])), int(of_first(mine_of[1]))};
    const int to[2] = {int(attend::least_of(of_end(mine_of[0]), int64_t(keys))),
                       int(attend::least_of(of_end(mine_of[1]), int64_t(keys)))};
    const int inside = int(attend::least_of(of_first(i1), int64_t(keys)));
    const int outside = int(attend::least_of(of_end(i0 < rows ? i0 : rows - 1), int64_t(keys)));
OF_KEPT_ROWS
    rk::mbarrier_wait(kept_full + 8 * ks, (tile / KEPT) & 1);
    const auto weigh = [&](int j) {
      const int n0 = (low + j) * WALKED, st = (it + j) % STAGES;
      const auto take_weights = [&](auto whole) {  // of a tile in which each row sees all, no place is looked at
#pragma unroll
        for (int i = 0; i < WALKED / 2; ++i) {
          const int h = (i >> 1) & 1, c = lane % 4 * 2 + i / 4 * 8 + (i & 1), n = n0 + c;
ZERO
          if (whole.value || (n >= from[h] && n < to[h])) of_weights(mine_of[h], n, GIVEN);
        }
      };
      if (n0 >= inside && n0 + WALKED <= outside) take_weights(std::true_type{});
      else take_weights(std::false_type{});
    };
    const auto keep = [&] {
#pragma unroll
      for (int i = 0; i < WALKED / 16; ++i)
#pragma unroll
        for (int c = 0; c < 4; ++c) {
KEEP
        }
    };
    const auto begin_products = [&](int i) {
      const int st = i % STAGES;
      rk::mbarrier_wait(full + 8 * st, (i / STAGES) & 1);
      rk::wgmma_fence();
PRODUCTS
      rk::wgmma_commit();
    };
    const auto begin_sums = [&](int i) {
      const int st = i % STAGES;
      rk::wgmma_fence();
SUMS
      rk::wgmma_commit();
    };
CLEAR
    for (int j = 0; j < count; ++j) {
      begin_products(it + j);
      rk::wgmma_wait<0>();
HOLD_PRODUCTS
      weigh(j);
      keep();
      begin_sums(it + j);
      rk::wgmma_wait<0>();
HOLD_SUMS
      __syncwarp();  // all lanes have read the numbers of the tile's rows
      if (lane == 0) rk::mbarrier_arrive(empty + 8 * ((it + j) % STAGES));
    }
    it += count;
    if (lane == 0) rk::mbarrier_arrive(kept_empty + 8 * ks);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const int i = r + 8 * h;
      if (i >= rows) continue;
RESULTS
    }
  }
"""


def is_plain(value: ir.Value) -> bool:
    """Return whether a value is made of loaded floats and numbers alone."""
    if isinstance(value, ir.Load):
        return value.storage == value.dtype == "float32" and all(isinstance(form, ir.Form) for form in value.index)
    return isinstance(value, ir.Op | ir.Const)


class HopperChain:
    """Prints the second kernel of chained products."""

    def __init__(self, chain: CudaChain) -> None:
        self.of, self.nest = chain, chain.nest
        nest = chain.nest
        self.outer = (*nest.batch, *nest.rows[1:])
        self.maps = HeadMaps(nest, self.outer)
        self.widths = [nest.tiles[place].width for place in nest.outer]  # of what is summed
        self.kept_bytes = sum(self.bytes(rows, 64 * GROUPS) for rows in nest.kept)
        self.numbers = self.of_rows(nest.keys, nest.batch)
        self.of_kept = self.of_rows(nest.rows[:1], (*nest.batch, *nest.rows))
        fitting = (n for n in TILES if self.registers(n) <= REGISTERS and self.stages_of(n) >= 2)
        self.walked = next(fitting, 0)
        self.tile_bytes = sum(self.bytes(rows, self.walked) for rows in nest.tiles)
        self.kept = 2 if ROOM - 2 * self.kept_bytes >= 2 * self.stage(self.walked) else 1
        self.stages = self.stages_of(self.walked, self.kept)
        self.shared = self.kept * self.kept_bytes + self.stages * self.tile_bytes + 1024

    def stage(self, walked: int) -> int:
        """Return the bytes of a stage of so many rows, with their numbers."""
        return sum(self.bytes(rows, walked) for rows in self.nest.tiles) + 4 * walked * len(self.numbers)

    def stages_of(self, walked: int, kept: int = 1) -> int:
        """Return how many stages of so many rows there are beside kept rows."""
        return min(MOST_STAGES, (ROOM - kept * self.kept_bytes) // max(self.stage(walked), 1))

    def registers(self, walked: int) -> int:
        """Return how many registers of a thread sums and products take; weights take the place of products."""
        return walked // 2 * len(self.nest.inner) + sum(self.widths) // 2

    @staticmethod
    def bytes(rows: Rows, many: int) -> int:
        """Return the bytes of so many rows in shared memory, of which 64 elements lie in a line."""
        return many * -(-rows.width // 64) * 128

    def of_rows(self, own: tuple[ir.Atom, ...], others: tuple[ir.Atom, ...]) -> list[ir.Value]:
        """Return what weights take that is one float for each row of these loops: loads, and what is made of them."""
        found, waiting = dict[ir.Value, None](), [*self.nest.weights]
        while waiting:
            value = waiting.pop()
            atoms = {leaf for atom in ir.tree_atoms(value) for leaf in atom.leaves()}
            if {*own} <= atoms <= {*own, *others} and value.dtype == "float32" and all(map(is_plain, ir.walk(value))):
                found[value] = None
            else:
                waiting += ir.children(value)
        return list(found)

    def number(self, value: ir.Value, text: str, loops: tuple[ir.Atom, ...]) -> tuple[list[str], str]:
        """Return statements and the C text of a row's number, in which `text` has the place of what is loaded."""
        nest, scope = self.nest, Scope()
        for load in (v for v in ir.walk(value) if isinstance(v, ir.Load)):
            access = access_of(load.stored, load.index, nest.names)
            at = f"{self.of.pointers[load.buffer]}[{nest.offset(access, nest.batch, loops)}]"
            scope.known[load] = text.format(at)
        made = self.printer().emit(value, scope)
        return scope.lines, made

    def printer(self) -> Printer:
        """Return what prints values here."""
        return self.nest.printer(self.of.pointers, self.of.function.storage, on_gpu(near=True))

    def serves(self) -> bool:
        """Return whether there is such a kernel for these products."""
        nest = self.nest
        one = nest.rows and len(nest.keys) == 1 and len(self.outer) <= MOST_OUTER and nest.rows[0].size >= 64
        widths = all(rows.width % 16 == 0 for rows in (*nest.kept, *nest.tiles))
        return bool(one and widths and self.of.sixteen and self.walked and self.of.index == "int")

    def note(self, needs: Needs) -> None:
        """Note what the kernel calls."""
        needs.copy_engine = True
        needs.columns |= {self.walked, *self.widths}

    def loads(self, found: list[Rows], prefix: str, *, to: str, bar: str, row: str, many: int) -> list[str]:
        """Return the statements that bring rows of all tensors."""
        lines, offset = list[str](), 0
        for n, rows in enumerate(found):
            for chunk in range(-(-rows.width // 64)):
                lines.append(
                    f"rk::tma_load(&map_{prefix}{n}, {to} + {offset}, {bar}, {chunk * 64}, {row}, "
                    f"{self.maps.place(rows.access)});"
                )
                offset += many * 128
        return lines

    def offsets(self, found: list[Rows], many: int) -> list[int]:
        """Return where the rows of each tensor begin."""
        out, offset = list[int](), 0
        for rows in found:
            out.append(offset)
            offset += self.bytes(rows, many)
        return out

    def kept_numbers(self) -> list[str]:
        """Return the statements that load what weights read of a thread's two rows."""
        lines, row = list[str](), f"const int {self.nest.index(self.nest.rows[0])} = i;"
        for n, value in enumerate(self.of_kept):
            made, text = self.number(value, "{}", self.nest.rows)
            lines.append(f"const auto of_row{n} = [&](int i) {{ {' '.join([row, *made])} return {text}; }};")
            lines.append(f"const float z{n}[2] = {{of_row{n}(mine_of[0]), of_row{n}(mine_of[1])}};")
        return lines

    def products(self) -> list[str]:
        """Return the statements that multiply kept rows with a tile's."""
        nest, lines = self.nest, list[str]()
        kept, tiles = self.offsets(nest.kept, 64 * GROUPS), self.offsets(nest.tiles, self.walked)
        for n, place in enumerate(nest.inner):
            lines += [
                "#pragma unroll",
                f"for (int kk = 0; kk < {nest.kept[n].width // 16}; ++kk)",
                f"  {self.multiply}(x{n}, rk::wgmma_descriptor(kept_at + {kept[n]} + kk / 4 * ROWS * 128 + "
                "kk % 4 * 32, 16, 1024),",
                f"      rk::wgmma_descriptor(tile_base + st * TILE_BYTES + {tiles[place]} + kk / 4 * WALKED * 128 + "
                "kk % 4 * 32, 16, 1024), kk);",
            ]
        return lines

    def sums(self) -> list[str]:
        """Return the statements that add weights times a tile's rows to the sums."""
        lines, tiles = list[str](), self.offsets(self.nest.tiles, self.walked)
        for n, place in enumerate(self.nest.outer):
            lines += [
                "#pragma unroll",
                "for (int kk = 0; kk < WALKED / 16; ++kk)",
                f"  {self.multiply}<1>(o{n}, p{n}[kk], rk::wgmma_descriptor(tile_base + st * TILE_BYTES + "
                f"{tiles[place]} + kk * 2048, WALKED * 128, 1024), 1);",
            ]
        return lines

    @property
    def multiply(self) -> str:
        """Return the function that multiplies numbers of this type."""
        return f"rk::wgmma_{SHORT_NAMES[self.nest.tiles[0].load.storage]}"

    def load_numbers(self) -> list[str]:
        """Return the statements of a warp that bring the numbers of a tile's rows."""
        lines, key = list[str](), self.nest.index(self.nest.keys[0])
        for n, value in enumerate(self.numbers):
            made, text = self.number(value, f"({key} < keys ? {{}} : 0.0f)", self.nest.keys)
            lines += [f"  {line}" for line in (*made, f"of_rows[s][{n}][n] = {text};")]
        index = f"  const int {key} = j * WALKED + n;"
        return ["for (int n = lane; n < WALKED; n += 32) {", index, *lines, "}"] if lines else []

    def weights(self) -> list[str]:
        """Return the function that makes the weights of a pair of rows of their products."""
        nest = self.nest
        numbers, products = [f"y{n}" for n in range(len(self.numbers))], [f"x{n}" for n in range(len(nest.inner))]
        numbers += [f"z{n}" for n in range(len(self.of_kept))]
        lines, names = nest.weighed(
            self.printer(), products, dict(zip((*self.numbers, *self.of_kept), numbers, strict=True))
        )
        given = [f"float {x}" for x in (*numbers, *products)] + [f"float& w{n}" for n in range(len(names))]
        stores = [f"w{n} = float({name});" for n, name in enumerate(names)]
        row = [f"const int {nest.index(nest.rows[0])} = i;"]
        body = [*row, *nest.apart("n", nest.keys, "const int"), *lines, *stores]
        return [f"const auto of_weights = [&](int i, int n, {', '.join(given)}) {{", *indent(body), "};"]

    def results(self) -> list[str]:
        """Return the statements that store a thread's sums of one row."""
        nest, lines = self.nest, [f"const int {self.nest.index(self.nest.rows[0])} = i;"]
        for n, access in enumerate(nest.out):
            outer = self.of.region.chained.outer[n]
            column = nest.stride(access, ir.leaves(outer.columns))
            place = f"{nest.offset(access, nest.batch, nest.rows)} + e * ({column})"
            lines += [
                "#pragma unroll",
                f"for (int c = 0; c < {self.widths[n] // 4}; ++c) {{",
                "  const int e = c / 2 * 8 + lane % 4 * 2 + c % 2;",
                f"  {self.of.pointers[outer.buffer]}[{place}] = o{n}[c / 2 * 4 + 2 * h + c % 2];",
                "}",
            ]
        return lines

    def body(self) -> str:
        """Return the statements of the kernel."""
        nest, count, walked = self.nest, len(self.widths), self.walked
        heads = nest.apart("head", self.outer, "const int")
        printer = self.printer()
        heads += [f"limit{n} = {text};" for n, text in enumerate(nest.limit_values(printer, "attend::most_of"))]
        declared = [f"float x{n}[{walked // 2}];" for n in range(len(nest.inner))]
        declared += [f"float w{n}[{walked // 2}], o{n}[{width // 2}];" for n, width in enumerate(self.widths)]
        declared += [f"uint32_t p{n}[{walked // 16}][4];" for n in range(count)]
        given = [f"of_rows[st][{n}][c]" for n in range(len(self.numbers))]
        given += [f"z{n}[h]" for n in range(len(self.of_kept))]
        given += [f"x{n}[i]" for n in range(len(nest.inner))] + [f"w{n}[i]" for n in range(count)]
        packed = "p{0}[i][c] = attend::packed({1}(0.0f), w{0}[8 * i + 2 * c], w{0}[8 * i + 2 * c + 1]);"
        of_rows = f"__shared__ __align__(16) float of_rows[{self.stages}][{len(self.numbers)}][{walked}];"
        parts = {
            "OF_ROWS": (1, [of_rows] if self.numbers else []),
            "HEAD_INDICES": (2, heads),
            "LOAD_KEPT": (4, self.loads(nest.kept, "kept", to="kept_base + ks * KEPT_BYTES", bar="kept_full + 8 * ks",
                                        row="row0", many=64 * GROUPS)),
            "LOAD_TILES": (5, self.loads(nest.tiles, "tile", to="tile_base + s * TILE_BYTES", bar="full + 8 * s",
                                         row="j * WALKED", many=walked)),
            "LOAD_NUMBERS": (5, self.load_numbers()),
            "DECLARED": (1, declared),
            "WEIGHTS": (2, self.weights()),
            "OF_KEPT_ROWS": (2, self.kept_numbers()),
            "ZERO": (5, [" ".join(f"w{n}[i] = 0.0f;" for n in range(count))]),
            "KEEP": (5, [packed.format(n, self.of.type) for n in range(count)]),
            "PRODUCTS": (3, self.products()),
            "SUMS": (3, self.sums()),
            "HOLD_SUMS": (3, [f"rk::wgmma_hold(o{n});" for n in range(count)]),
            "HOLD_PRODUCTS": (3, [f"rk::wgmma_hold(x{n});" for n in range(len(nest.inner))]),
            "CLEAR": (2, [
                line for n, width in enumerate(self.widths)
                for line in ("#pragma unroll", f"for (int i = 0; i < {width // 2}; ++i) o{n}[i] = 0.0f;")
            ]),
            "RESULTS": (3, self.results()),
        }  # fmt: skip
        text = BODY.replace("GIVEN", ", ".join(given))
        for name, (depth, lines) in parts.items():
            text = text.replace(f"\n{name}\n", "\n" + "".join(f"{'  ' * depth}{line}\n" for line in lines))
        return text

    def text(self, name: str, declared: str, given: str) -> tuple[list[str], list[str], str]:
        """Return the kernel, the statements that launch it, and the condition under which it serves."""
        nest, names = self.nest, self.nest.names
        row, key = nest.rows[0], nest.keys[0]
        data = {n: value for _, n, value in self.of.parameters()}
        found = [("kept", n, rows, row, 64 * GROUPS) for n, rows in enumerate(nest.kept)]
        found += [("tile", n, rows, key, self.walked) for n, rows in enumerate(nest.tiles)]
        maps = [f"map_{kind}{n}" for kind, n, *_ in found]
        made = [
            self.maps.map(label, data[self.of.pointers[rows.load.buffer]], rows.access, leaf, box=box, width=rows.width)
            for label, (_, _, rows, leaf, box) in zip(maps, found, strict=True)
        ]
        last_first = int(any(band.after for band in nest.bands))  # the tiles with the most to walk along come first
        constants = f"GROUPS = {GROUPS}, WALKED = {self.walked}, STAGES = {self.stages}, KEPT = {self.kept}"
        constants += f", KEPT_BYTES = {self.kept_bytes}, TILE_BYTES = {self.tile_bytes}"
        constants += f", NUMBERS = {len(self.numbers)}, LAST_FIRST = {last_first}"
        kernel = [
            f"__global__ void __launch_bounds__({128 * (GROUPS + 1)}, 1)",
            f"{name}_hopper({', '.join(f'const __grid_constant__ CUtensorMap {label}' for label in maps)},",
            f"    {declared}, int heads, int together) {{",
            "#ifdef RK_ON_HOPPER",
            f"  constexpr int {constants};",
            f"  const int rows = {names[row]}, keys = {names[key]};",
            *indent([f"int64_t limit{n} = 0;" for n in range(len(nest.limits))]),
            *indent(nest.bounds([f"const int64_t {nest.index(row)} = i;"])),
            self.body() + "#endif",
            "}",
        ]
        walked = sum(rows.width for rows in nest.tiles)
        launch = [
            *(line for line, _ in made),
            f"const int heads = int({names.product(self.outer)}), across = ({names[row]} + {64 * GROUPS - 1}) / "
            f"{64 * GROUPS};",
            "// So many heads have rows to walk along that fit in L2.",
            f"const int fitting = (24 << 20) / ({names[key]} * {2 * walked} + 1);",
            "const int together = int(attend::most_of(1, attend::least_of(heads, fitting)));",
            f"cudaFuncSetAttribute({name}_hopper, cudaFuncAttributeMaxDynamicSharedMemorySize, {self.shared});",
            "const int most_blocks = rk::processors(), wanted = across * heads;",
            "const int blocks = wanted < most_blocks ? wanted : most_blocks;",
            f"{name}_hopper<<<blocks, {128 * (GROUPS + 1)}, {self.shared}, stream>>>"
            f"({', '.join(maps)}, {given}, heads, together);",
        ]
        return kernel, launch, " && ".join(["built", f"{names[row]} >= 64", *(condition for _, condition in made)])
