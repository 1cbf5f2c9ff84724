"""CUDA for running totals: blocks take tiles of rows, read and written once however long a row is.

Comes in: a row region of scans without reductions. Goes out: two kernels for it, of sixteen bytes a load and of single
elements. A thread keeps its elements in registers; lanes, warps and then tiles add up what lies before them. What the
tiles of a row before this one come to is found by decoupled look-back (Merrill & Garland, 2016): every tile shows
first what it comes to, then what all up to it come to, and looks back over those before. Blocks take tiles in the order
in which they start, so that those before are on their way. Of floats, tiles add up in double.

A thread goes over its elements twice: for what they come to, and, once all before them is known, for their totals.
Totals of a few elements stay in registers in between; of more they are made anew of what was loaded, since they take
twice the registers of what has sixteen bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

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
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.reductions import Kind

THREADS, MOST_THREADS = 256, 1024  # of a block; where each of many rows has one tile, so that nobody waits
ROOM, ROOM_OF_TILES = 48, 60  # words of what a thread keeps of its vectors: of whole rows, of a row's several tiles
MOST_ITEMS = 32  # vectors, or single elements
KEPT_TOTALS = 64  # of a thread, of rows of one tile of at most `THREADS` threads
REGISTERS = 1 << 16  # of a processor, of which a thread has 64, or 80 where a row has several tiles
MANY_ROWS = 264  # of which blocks that take a row each, in stretches, are quicker than tiles of single elements
MOST_SCANS = 4
PLACE_BYTES = 8  # of an extreme and its index

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
// A vector as if it were loaded anew: what was made of it before is not kept in registers then.
template <class P> __device__ void take_anew(P& v) {
  if constexpr (sizeof(P) >= 4)
#pragma unroll
    for (int i = 0; i < int(sizeof(P) / 4); ++i) asm volatile("" : "+r"(reinterpret_cast<uint32_t*>(&v)[i]));
}
"""


@dataclass(slots=True)
class TiledScans(VectorizedRegion):
    """Prints a kernel in which a thread has `items` vectors of a tile, 32 vectors apart."""

    begun: dict[ir.Scan, str] = field(default_factory=dict)  # what the variables of a scan begin with

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
        wanted = -(-self.row_vectors // self.most(ROOM))
        few = next((n for n in (32, 64, 128, THREADS, 512) if n >= wanted), MOST_THREADS)
        return THREADS if self.is_long else few

    @property
    def keeps_totals(self) -> bool:
        """Return whether totals stay in registers: of whole rows of up to 16384 elements, in one scan (measured)."""
        kept = self.items() * self.width * len(self.scans_in_order())
        return not self.is_long and self.threads <= THREADS and kept <= KEPT_TOTALS

    @property
    def is_wide(self) -> bool:
        """Return whether blocks are so large that registers decide how many a processor has."""
        return self.threads >= THREADS and not self.keeps_totals

    @property
    def is_long(self) -> bool:
        """Return whether a row has several tiles."""
        many = math.prod(loop.count for loop in self.nest.outer) >= MANY_ROWS
        return self.row_vectors > (MOST_THREADS if many else THREADS) * self.most(ROOM)

    def most(self, room: int) -> int:
        """Return how many vectors a thread takes at most, with what it knows of those before each."""
        vectors = [self.vectors[name] for name in self.loaded_once()]
        loaded = [vector.count * ITEMSIZE[self.printer.storage[vector.buffer]] for vector in vectors]
        before = [ITEMSIZE.get(scan.dtype, PLACE_BYTES) for scan in self.scans_in_order()]
        return max(1, min(MOST_ITEMS, room // sum(-(-bytes_ // 4) for bytes_ in [*loaded, *before])))

    def loaded_once(self) -> list[str]:
        """Return the names of what a thread keeps: all that scans read."""
        scanned = ir.walk(*(scan.arg for scan in self.scans_in_order()))
        return self.in_order({self.names.get(v, "") for v in scanned if isinstance(v, ir.Load)})

    def items(self) -> int:
        return min(self.most(ROOM_OF_TILES if self.is_long else ROOM), -(-self.row_vectors // self.threads))

    @property
    def item_index(self) -> str:
        return "first + 32 * j"

    def kept_or_loaded(self, name: str, load: str) -> str:
        return f"{name}_kept[j]"

    def row(self) -> list[str]:
        scope, scans, passes = Scope(), self.scans_in_order(), list[str]()
        self.held = tuple(self.loaded_once())
        self.begin(scope)
        lines = [
            f"constexpr int ITEMS = {self.items()};",
            "__shared__ unsigned taken[1];",
            f"unsigned* const turns = (unsigned*)(state + {len(scans)} * gridDim.x);",
            "if (tiles > 1) {",
            "  if (threadIdx.x == 0) taken[0] = atomicAdd(turns, 1u);",
            "  __syncthreads();",
            "}",
            "const unsigned at = tiles > 1 ? taken[0] : blockIdx.x;",
            "const unsigned t = at / unsigned(tiles), tile = at % unsigned(tiles);",
            *self.indices(self.sharing_last(), "t"),
            "const int64_t first = (int64_t(tile) * blockDim.x + threadIdx.x / 32 * 32) * ITEMS + threadIdx.x % 32;",
        ]
        for number in range(len(scans)):
            passes += self.what_comes_before(number, scope)
        self.settle([*self.stores.values()], scope)
        inner = self.open_inner(scope)
        starts = self.totals(scans, inner)
        stores = [line for buffer in self.stores for line in self.store(buffer, inner)]
        passes += self.each_item([*starts, *self.where_it_exists([*inner.lines, *stores])])
        return [*lines, *scope.lines, *self.keep(), *passes]

    def where_it_exists(self, lines: list[str]) -> list[str]:
        """Return the lines for each element of a thread's vector, as far as the row has it."""
        inside = [*self.indices([*self.nest.reduced[:-1], self.quad], "k"), *self.quad_lines(lines)]
        return [f"if ({self.item_exists}) {{", *indent(inside), "}"]

    def called(self, scan: ir.Scan) -> tuple[str, str, str, str]:
        """Return what a scan's variables begin with, their type, the functor, and the element that changes nothing."""
        if scan not in self.begun:
            self.begun[scan] = self.printer.name("s")
        ctype = CTYPES[scan.dtype]
        return self.begun[scan], ctype, f"{C[scan.kind].functor}()", f"{ctype}({start_of(scan.kind, scan.dtype)})"

    def what_comes_before(self, number: int, scope: Scope) -> list[str]:
        """Return the pass in which a thread's vectors are reduced, and what comes before each is told."""
        scans = self.scans_in_order()
        scan, wide = scans[number], accumulator(scans[number])
        name, ctype, functor, start = self.called(scan)
        self.settle([scan.arg], scope)
        inner = self.open_inner(scope)
        starts = self.totals([v for v in scans[:number] if v in ir.walk(scan.arg)], inner)
        step = [f"last = {functor}(last, {ctype}({self.printer.emit(scan.arg, inner)}));"]
        step += [f"{name}[j][u] = last;"] if self.keeps_totals else []
        each = [
            *starts,
            f"{ctype} last = {start};",
            *self.where_it_exists([*inner.lines, *step]),
            f"const {ctype} all = lane_scan(last, {functor}), left = __shfl_up_sync(0xffffffffu, all, 1);",
            f"{name}_before[j] = {functor}({name}_run, threadIdx.x % 32 ? left : {start});",
            f"{name}_run = {functor}({name}_run, __shfl_sync(0xffffffffu, all, 31));",
        ]
        of_row = f"state + ({number} * int64_t(gridDim.x) + int64_t(t) * tiles)"
        return [
            *([f"{ctype} {name}[ITEMS][{self.width}] = {{}};"] if self.keeps_totals else []),
            f"{ctype} {name}_before[ITEMS], {name}_run = {start};",
            *self.each_item(each),
            f"const {wide} {name}_earlier = of_earlier<{number}>({wide}({name}_run), {functor}, "
            f"{wide}({start_of(scan.kind, scan.dtype)}), tile, tiles, {of_row});",
            *(self.each_item([f"take_anew({kept}_kept[j]);" for kept in self.held]) if self.is_wide else []),
        ]

    def totals(self, scans: list[ir.Scan], inner: Scope) -> list[str]:
        """Make the running totals of an element known, and return what they begin with in a vector.

        Floats of a vector are added up alone, so that what is before them rounds each once.
        """
        starts = list[str]()
        for scan in scans:
            name, ctype, functor, start = self.called(scan)
            before = f"{ctype}({functor}({name}_earlier, {accumulator(scan)}({name}_before[j])))"
            if self.keeps_totals:
                starts.append(f"const {ctype} {name}_base = {before};")
                inner.known[scan] = f"{functor}({name}_base, {name}[j][u])"
                continue
            alone = scan.kind in {Kind.SUM, Kind.PROD} and ctype in {"float", "double"}
            text = f"{ctype}({self.printer.emit(scan.arg, inner)})"
            starts += [f"const {ctype} {name}_base = {before};"] if alone else []
            starts += [f"{ctype} {name}_last = {start if alone else before};"]
            total = f"{functor}({name}_base, {name}_last)" if alone else f"{name}_last"
            inner.lines += [f"{name}_last = {functor}({name}_last, {text});", f"const {ctype} {name}_total = {total};"]
            inner.known[scan] = f"{name}_total"
        return starts

    def each(self, lines: list[str]) -> list[str]:
        if self.width > 1:
            return VectorizedRegion.each(self, lines)
        return ["constexpr int u = 0;", f"const int64_t {self.axis_var} = {self.element};", *lines]

    @property
    def template(self) -> str:
        return ""

    @property
    def bounds(self) -> str:
        at_once = REGISTERS // (80 if self.is_long else 64) // self.threads
        return f"__launch_bounds__({self.threads}{f', {at_once}' * self.is_wide}) "

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
    if len(scans) > MOST_SCANS:
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
