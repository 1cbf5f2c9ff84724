"""CUDA for running totals: blocks take tiles of rows, read and written once however long a row is.

Comes in: a row region of scans without reductions. Goes out: two kernels for it, of sixteen bytes a load and of single
elements. A thread keeps its elements in registers; lanes, warps and then tiles add up what lies before them. What the
tiles of a row before this one come to is found by decoupled look-back (Merrill & Garland, 2016): every tile shows
first what it comes to, then what all up to it come to, and looks back over those before. Blocks take tiles in the order
in which they start, so that those before are on their way. Of floats, tiles add up in double.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.reduction_levels import accumulator, indent
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.found_vectors import find_quads, narrowest
from rag_kernels.offline.cuda.elements.neighbours import MOST_WIDTH, axis_of
from rag_kernels.offline.cuda.elements.vectorized import VectorizedRegion
from rag_kernels.offline.cuda.kernel_text import Parameter
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir

KEPT_ELEMENTS, THREADS = 64, 256  # of a thread, of all values that are scanned; of a block
MANY_ROWS = 264  # of which blocks that take a row each, in stretches, are quicker than tiles of single elements
KEPT_OF_TILES, THREADS_OF_TILES = 32, 256  # where a row has several tiles, and blocks wait for each other

HEAD = """
// What comes before this warp: the warps before it in its tile, and the tiles before that in its row.
template <int WHICH, class T, class F>
__device__ T of_earlier(T mine, F f, T start, unsigned tile, int64_t tiles, ulonglong2* state) {
  __shared__ T parts[32], earlier[1];
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  if (lane == 0) parts[warp] = mine;
  __syncthreads();
  T before = start;
  for (int part = 0; part < warp; ++part) before = f(before, parts[part]);
  if (tiles == 1) return before;
  if (warp == 0) {
    T all = start, carry = start;
    for (int part = 0; part < warps; ++part) all = f(all, parts[part]);
    if (lane == 0) post(state + tile, packed(all, tile == 0 ? 2 : 1));
    for (int back = int(tile) - 1 - lane; tile > 0; back -= 32) {
      ulonglong2 words = packed(start, 2);  // before the first
      if (back >= 0) do words = posted(state + back); while (words.x >> 32 == 0);
      const unsigned known = __ballot_sync(0xffffffffu, words.x >> 32 == 2);
      const int last = known ? __ffs(int(known)) - 1 : 31;
      carry = f(of_lanes(lane <= last ? unpacked<T>(words) : start, f, 32), carry);
      if (known) break;
    }
    if (lane == 0 && tile > 0) post(state + tile, packed(f(carry, all), 2));
    if (lane == 0) earlier[0] = carry;
  }
  __syncthreads();
  return f(earlier[0], before);
}
"""


@dataclass(slots=True)
class TiledScans(VectorizedRegion):
    """Prints a kernel in which a thread has `items` vectors of a tile, 32 vectors apart."""

    def scans_in_order(self) -> list[ir.Scan]:
        """Return the scans, arguments of others before these."""
        return [v for v in ir.walk(*self.values) if isinstance(v, ir.Scan)]

    @property
    def row_vectors(self) -> int:
        """Return how many vectors a row of this problem has."""
        return -(-self.reduced_count() // self.width)

    @property
    def threads(self) -> int:
        """Return the threads of a block: as many as a short row wants."""
        wanted = -(-self.row_vectors // self.most)
        return THREADS_OF_TILES if self.is_long else next((n for n in (32, 64, 128) if n >= wanted), THREADS)

    @property
    def is_long(self) -> bool:
        """Return whether a row has several tiles."""
        return self.reduced_count() * len(self.scans_in_order()) > THREADS * KEPT_ELEMENTS

    @property
    def most(self) -> int:
        """Return how many vectors a thread takes at most."""
        kept = KEPT_OF_TILES if self.is_long else KEPT_ELEMENTS
        return max(1, kept // self.width // len(self.scans_in_order()))

    def items(self) -> int:
        return min(self.most, -(-self.row_vectors // self.threads))

    @property
    def item_index(self) -> str:
        return "first + 32 * j"

    def kept_or_loaded(self, name: str, load: str) -> str:
        return f"{name}_kept[j]"

    def row(self) -> list[str]:
        scope = Scope()
        self.held = tuple(self.in_order(set(self.names.values())))
        self.begin(scope)
        lines = [
            f"constexpr int ITEMS = {self.items()};",
            "__shared__ unsigned taken[1];",
            f"unsigned* const turns = (unsigned*)(state + {len(self.scans_in_order())} * gridDim.x);",
            "if (tiles > 1) {",
            "  if (threadIdx.x == 0) taken[0] = atomicAdd(turns, 1u);",
            "  __syncthreads();",
            "}",
            "const unsigned at = tiles > 1 ? taken[0] : blockIdx.x;",
            "const unsigned t = at / unsigned(tiles), tile = at % unsigned(tiles);",
            *self.indices(self.sharing_last(), "t"),
            "const int64_t first = (int64_t(tile) * blockDim.x + threadIdx.x / 32 * 32) * ITEMS + threadIdx.x % 32;",
        ]
        known: dict[object, str] = {}
        passes: list[str] = []
        for number, scan in enumerate(self.scans_in_order()):
            passes += self.scanned(scan, number, scope, known)
        self.settle(list(self.stores.values()), scope)
        inner = self.open_inner(scope)
        inner.known |= known
        stores = [line for buffer in self.stores for line in self.store(buffer, inner)]
        passes += self.over_items([*inner.lines, *stores])
        return [*lines, *scope.lines, *self.keep(), *passes]

    def over_items(self, lines: list[str]) -> list[str]:
        """Return the loop over a thread's vectors, as far as the row has them."""
        inside = [*self.indices([*self.nest.reduced[:-1], self.quad], "k"), *self.quad_lines(lines)]
        return self.each_item([f"if ({self.item_exists}) {{", *indent(inside), "}"])

    def scanned(self, scan: ir.Scan, number: int, scope: Scope, known: dict[object, str]) -> list[str]:
        """Return the statements by which a thread's elements become running totals, and record their name."""
        name, ctype, wide = self.printer.name("s"), CTYPES[scan.dtype], accumulator(scan)
        functor, start = f"{C[scan.kind].functor}()", f"{ctype}({start_of(scan.kind, scan.dtype)})"
        self.settle([scan.arg], scope)
        inner = self.open_inner(scope)
        inner.known |= known
        text = self.printer.emit(scan.arg, inner)
        step = [f"last = {functor}(last, {ctype}({text}));", f"{name}[j][u] = last;"]
        inside = [*self.indices([*self.nest.reduced[:-1], self.quad], "k"), *self.quad_lines([*inner.lines, *step])]
        each = [
            f"{ctype} last = {start};",
            f"if ({self.item_exists}) {{",
            *indent(inside),
            "}",
            f"const {ctype} all = lane_scan(last, {functor}), left = __shfl_up_sync(0xffffffffu, all, 1);",
            f"{name}_before[j] = {functor}({name}_run, threadIdx.x % 32 ? left : {start});",
            f"{name}_run = {functor}({name}_run, __shfl_sync(0xffffffffu, all, 31));",
        ]
        of_row = f"state + ({number} * int64_t(gridDim.x) + int64_t(t) * tiles)"
        add = [
            f"const {ctype} base = {ctype}({functor}({name}_earlier, {wide}({name}_before[j])));",
            "#pragma unroll",
            f"for (int u = 0; u < {self.width}; ++u) {name}[j][u] = {functor}(base, {name}[j][u]);",
        ]
        known[scan] = f"{name}[j][u]"
        return [
            f"{ctype} {name}[ITEMS][{self.width}] = {{}}, {name}_before[ITEMS], {name}_run = {start};",
            *self.each_item(each),
            f"const {wide} {name}_earlier = of_earlier<{number}>({wide}({name}_run), {functor}, "
            f"{wide}({start_of(scan.kind, scan.dtype)}), tile, tiles, {of_row});",
            *self.each_item(add),
        ]

    def each(self, lines: list[str]) -> list[str]:
        if self.width > 1:
            return VectorizedRegion.each(self, lines)
        return ["constexpr int u = 0;", f"const int64_t {self.axis_var} = {self.element};", *lines]

    @property
    def template(self) -> str:
        return ""

    @property
    def bounds(self) -> str:
        return f"__launch_bounds__({self.threads}) "

    def parameters_of(self, body: list[str], function: Function, kind: str = "int64_t") -> list[Parameter]:
        shown = Parameter("int64_t", "tiles", "tiles"), Parameter("ulonglong2*", "state", "state")
        return [*VectorizedRegion.parameters_of(self, body, function, kind), *shown]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        rows, each = self.total(self.nest.outer), self.threads * self.items()
        return [
            f"const int64_t tiles = (small({self.quads}) + {each - 1}) / {each}, all = small(({rows}) * tiles);",
            f"const int64_t places = all * {len(self.scans_in_order())} + 1;  // what tiles show, and whose turn it is",
            "ulonglong2* const state = tiles > 1 ? scratch<ulonglong2>(places, stream) : nullptr;",
            "if (state) cudaMemsetAsync(state, 0, sizeof(ulonglong2) * places, stream);",
            f"if (all > 0) {name}<<<blocks(all), {self.threads}, 0, stream>>>({', '.join(arguments)});",
            "if (state) cudaFreeAsync(state, stream);",
        ]


def tiled_scans(
    region: Region, function: Function, sizes: Sizes, parameters: CudaParameters, *, single: bool
) -> TiledScans | None:
    """Return the kernel of tiles of a region of scans, of single elements or of vectors; None where it has none."""
    found = TiledScans.of(region, function, sizes, parameters)
    nest, axis = found.nest, axis_of(found.nest)
    scans = found.scans_in_order()
    if (
        nest.schedule != "row"
        or axis is None
        or not scans
        or found.top
        or len(found.inner_stores()) < len(found.stores)
    ):
        return None
    if len(scans) > KEPT_OF_TILES // MOST_WIDTH:
        return None
    if single and parameters.vector > 1 and math.prod(loop.count for loop in nest.outer) >= MANY_ROWS:
        return None
    if single:
        found.width, found.axis = 1, axis  # even where no load or store lies so
        find_quads(found)
        return found
    width = min(MOST_WIDTH, 16 // narrowest(found, axis))
    while width > 1 and axis.count % width:
        width //= 2
    found.width, found.truths = width, True
    return found if width > 1 and parameters.vector > 1 and find_quads(found) else None
