"""CUDA for pointwise regions that read across what they write: a matrix turned, channels put last.

Comes in: a point region whose threads write neighbours where what they read lies far apart, and along another loop side
by side. Goes out: a second kernel whose blocks take a tile: read along that loop into shared memory, then computed and
stored along the innermost one, four elements at a time where sizes allow it; and the C condition under which it may run
and pays. Other loads are those of `vectorized.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_kernels.offline.codegen.c_types import CTYPES, stored_type
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Access, Loop, text_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.found_vectors import find_quads
from rag_kernels.offline.cuda.elements.neighbours import neighbours, others
from rag_kernels.offline.cuda.elements.vectorized import VectorizedRegion
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.parameters import c_name

THREADS, LARGE, SMALL = 256, 64, 32  # of a block; elements of a tile's side
LEAST, WIDE = 16, 4  # elements of either loop; of a vector
SHARED_BYTES = 40 << 10
BANK = 4  # bytes: a tile's rows are one longer than a multiple of all banks, so that a warp reads down a column at once


@dataclass(frozen=True, slots=True)
class Tile:
    """What is read across: the text of the load, its buffer, its name, the types of its elements in memory and in
    registers.
    """

    load: str
    buffer: str
    name: str
    stored: str
    ctype: str
    itemsize: int


@dataclass(slots=True)
class TurnedPoints(VectorizedRegion):
    """Prints a kernel whose blocks take tiles of the innermost loop and of `across`."""

    across: Loop | None = None
    tiles: list[Tile] = field(default_factory=list)
    checks: dict[str, None] = field(default_factory=dict)  # of sizes, as C

    def find(self) -> bool:
        """Record what is read across, and return whether there is any that vectors of this width serve."""
        nest = self.nest
        if nest.schedule != "point" or nest.lane is None or nest.lane.count < LEAST:
            return False
        loads = [v for v in ir.walk(*nest.region.stores.values()) if isinstance(v, ir.Load)]
        found = [(v, loop) for v in loads for loop in nest.outer if self.lies_along(v, loop)]
        self.across = next((loop for _, loop in found), None)
        if self.across is None or self.across.count % self.width:
            return False
        for v in (v for v, loop in found if loop is self.across):
            self.add_tile(v, nest.accesses[v])
        return bool(self.tiles) and find_quads(self) and self.targets.keys() == nest.stores.keys()

    def lies_along(self, value: ir.Load, loop: Loop) -> bool:
        """Return whether neighbours along the loop are neighbours in memory, and those along the lane are not."""
        access, lane = self.nest.accesses[value], self.nest.lane
        plain = value.storage in ITEMSIZE.keys() - {"bool"} and value.dtype != "bool" and not access.values
        apart = lane is not None and abs(access.stride(lane.leaves[-1])) >= LEAST
        return plain and apart and loop.count >= LEAST and neighbours(access, loop, self.nest, self.width)

    def add_tile(self, value: ir.Load, access: Access) -> None:
        """Record a load, if there is room for its tile and none is there yet, with what its vectors ask of sizes."""
        assert self.across
        text = f"{self.printer.pointers[value.buffer]}[{self.nest.offset(access)}]"
        size = ITEMSIZE[value.storage]
        room = self.tile_bytes(size) + sum(self.tile_bytes(tile.itemsize) for tile in self.tiles) <= SHARED_BYTES
        if not room or text in {tile.load for tile in self.tiles}:
            return
        name = f"{c_name(value.buffer)}_tile{len(self.tiles) or ''}"
        self.tiles.append(Tile(text, value.buffer, name, stored_type(value.storage, "cuda"), CTYPES[value.dtype], size))
        steps = [access.steps.get(loop.leaves[-1], {}) for loop in others(self.across, self.nest)]
        for step in [*steps, access.constant]:
            if any(step):  # of sizes
                self.checks.setdefault(f"({text_of(step)}) % {self.width} == 0")

    @property
    def side(self) -> int:
        """Return how many elements a tile's side has."""
        assert self.across and self.nest.lane
        return LARGE if min(self.across.count, self.nest.lane.count) > SMALL else SMALL

    def tile_bytes(self, itemsize: int) -> int:
        """Return the bytes of a tile in shared memory."""
        return self.side * (self.side * itemsize + max(BANK, itemsize))

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C: where tiles are not mostly empty."""
        assert self.across and self.nest.lane
        large = [f"{self.total([loop])} >= {LEAST}" for loop in (self.across, self.nest.lane)]
        if self.width == 1:
            return " && ".join(large)
        aligned = self.aligned(tile.buffer for tile in self.tiles)
        checks = [f"({self.across.size}) % {self.width} == 0", *self.checks, aligned]
        return " && ".join(dict.fromkeys([*large, *checks, VectorizedRegion.condition(self, name)]))

    def counts(self) -> tuple[str, str]:
        """Return how many tiles there are along the lane and across it, as C."""
        assert self.across and self.nest.lane
        lane, across = (f"({self.total([x])} + {self.side - 1}) / {self.side}" for x in (self.nest.lane, self.across))
        return lane, across

    def point(self) -> list[str]:
        """Return a block's work: its tiles are read, then their elements computed and stored."""
        assert self.across and self.nest.lane
        lane, across = self.counts()
        rest = [loop for loop in self.nest.outer if loop is not self.across]
        return [
            *(f"__shared__ {t.stored} {t.name}[{self.side}][{self.row_of(t)}];" for t in self.tiles),
            f"const uint32_t lanes = uint32_t({lane}), tiles = lanes * uint32_t({across});",
            f"const int64_t first_l = int64_t(blockIdx.x % lanes) * {self.side};",
            f"const int64_t first_a = int64_t(blockIdx.x % tiles / lanes) * {self.side};",
            *self.indices(rest, "(blockIdx.x / tiles)"),
            *self.reading(),
            "__syncthreads();",
            *self.writing(),
        ]

    def reading(self) -> list[str]:
        """Return statements that bring the tiles into shared memory: all loads before the first of them is stored."""
        assert self.across and self.nest.lane
        vectors = {t: f"Pack<{t.stored}, {self.width}>" for t in self.tiles}
        loads = [f"{t.name}_held[j] = *reinterpret_cast<const {vectors[t]}*>(&{t.load});" for t in self.tiles]
        row = f"[threadIdx.y + {self.rows} * j][{self.own} + u]"
        puts = [f"{t.name}{row} = {t.name}_held[j].x[u];" for t in self.tiles]
        head = [
            f"const int64_t {self.across.var} = first_a + {self.own};",
            f"const int64_t {self.nest.lane.var} = first_l + threadIdx.y + {self.rows} * j;",
        ]
        inside = self.within(self.across, self.nest.lane)
        elements = ["#pragma unroll", f"for (int u = 0; u < {self.width}; ++u) {{", *indent(puts), "}"]
        held = [f"{vectors[t]} {t.name}_held[{self.steps}];" for t in self.tiles]
        return [*held, *self.each_step(head, inside, loads), *self.each_step(head, inside, elements)]

    def writing(self) -> list[str]:
        """Return statements that compute a tile's elements and store them along the lane."""
        assert self.across and self.nest.lane
        task = Scope()
        self.begin(task)
        self.settle_lane(task)
        scope = self.open_inner(task)
        for t in self.tiles:
            place = f"[{self.own} + u][threadIdx.y + {self.rows} * j]"
            scope.lines.append(f"const {t.ctype} {t.name}_element = {t.ctype}({t.name}{place});")
            scope.known[t.load] = f"{t.name}_element"
        stores = [line for buffer in self.stores for line in self.store(buffer, scope)]
        lines = [*task.lines, *self.quad_lines([*scope.lines, *stores])]
        head = [
            f"const int64_t {self.quad.var} = first_l / {self.width} + threadIdx.x;",
            f"const int64_t {self.across.var} = first_a + threadIdx.y + {self.rows} * j;",
        ]
        number = [f"const int64_t t = {self.flat([*self.nest.outer, self.quad])};"] if self.numbered else []
        return self.each_step(head, self.within(self.across, self.quad), [*number, *lines])

    def within(self, *loops: Loop) -> str:
        """Return the C condition that these loops have such an element."""
        return " && ".join(f"{loop.var} < {self.total([loop])}" for loop in loops)

    @property
    def own(self) -> str:
        """Return where in a tile's row the vector of a thread begins, as C."""
        return f"{self.width} * threadIdx.x" if self.width > 1 else "threadIdx.x"

    @property
    def rows(self) -> int:
        """Return how many rows of a tile a block takes at once."""
        return THREADS * self.width // self.side

    @property
    def steps(self) -> int:
        """Return how many vectors a thread takes."""
        return self.side // self.rows

    def row_of(self, tile: Tile) -> int:
        """Return the elements of a tile's row, those included that keep its columns apart."""
        return self.side + max(1, BANK // tile.itemsize)

    def each_step(self, head: list[str], inside: str, lines: list[str]) -> list[str]:
        """Return the lines for each of a thread's vectors."""
        body = [*head, f"if ({inside}) {{", *indent(lines), "}"]
        return ["#pragma unroll", f"for (int j = 0; j < {self.steps}; ++j) {{", *indent(body), "}"]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        lane, across = self.counts()
        rest = [loop for loop in self.nest.outer if loop is not self.across]
        grid = f"blocks({' * '.join([*([self.total(rest)] if rest else []), f'({lane})', f'({across})'])})"
        block = f"dim3({self.side // self.width}, {self.rows})"
        return [f"{name}<<<{grid}, {block}, 0, stream>>>({', '.join(arguments)});"]


def turned_region(region: Region, function: Function, sizes: Sizes, parameters: CudaParameters) -> TurnedPoints | None:
    """Return the kernel that takes a region's tiles, if it reads across what it writes."""
    for width in (WIDE, 1) if parameters.vector > 1 else (1,):
        found = TurnedPoints.of(region, function, sizes, parameters)
        found.width = width
        if found.find():
            return found
    return None
