"""CUDA for pointwise regions that read across what they write: a matrix turned, channels put last.

Comes in: a point region whose threads write neighbours where what they read lies far apart, and along another loop side
by side. Goes out: a second kernel whose blocks take a tile: read along that loop into shared memory, then computed and
stored along the innermost one; and the C condition under which it pays. Other loads stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_kernels.offline.codegen.c_types import CTYPES, stored_type
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Access, Loop
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE

THREADS, LARGE, SMALL = 256, 64, 32  # of a block; elements of a tile's side
LEAST = 16  # elements of either loop
SHARED_BYTES = 40 << 10
BANK = 4  # bytes: a tile's rows are one longer than a multiple of all banks, so that a warp reads down a column at once


@dataclass(frozen=True, slots=True)
class Tile:
    """What is read across: the text of the load, its name, the types of its elements in memory and in registers."""

    load: str
    name: str
    stored: str
    ctype: str
    itemsize: int


@dataclass(slots=True)
class TurnedPoints(CudaRegion):
    """Prints a kernel whose blocks take tiles of the innermost loop and of `across`."""

    across: Loop | None = None
    tiles: list[Tile] = field(default_factory=list)

    def find(self) -> bool:
        """Record what is read across, and return whether there is any."""
        nest = self.nest
        if nest.schedule != "point" or nest.lane is None or nest.lane.count < LEAST:
            return False
        if not all(steps_by_one(access, nest.lane) for access in nest.stores.values()):
            return False
        loads = [v for v in ir.walk(*nest.region.stores.values()) if isinstance(v, ir.Load)]
        found = [(v, loop) for v in loads for loop in nest.outer if self.lies_along(v, loop)]
        self.across = next((loop for _, loop in found), None)
        for v in (v for v, loop in found if loop is self.across):
            text = f"{self.printer.pointers[v.buffer]}[{nest.offset(nest.accesses[v])}]"
            size = ITEMSIZE[v.storage]
            room = self.tile_bytes(size) + sum(self.tile_bytes(tile.itemsize) for tile in self.tiles) <= SHARED_BYTES
            if room and text not in {tile.load for tile in self.tiles}:
                name = f"{self.printer.pointers[v.buffer][:-2]}_tile{len(self.tiles) or ''}"
                self.tiles.append(Tile(text, name, stored_type(v.storage, "cuda"), CTYPES[v.dtype], size))
        return bool(self.tiles)

    def lies_along(self, value: ir.Load, loop: Loop) -> bool:
        """Return whether neighbours along the loop are neighbours in memory, and those along the lane are not."""
        access, lane = self.nest.accesses[value], self.nest.lane
        plain = value.storage in ITEMSIZE.keys() - {"bool"} and value.dtype != "bool" and not access.values
        apart = lane is not None and abs(access.stride(lane.leaves[-1])) >= LEAST
        return plain and apart and loop.count >= LEAST and steps_by_one(access, loop)

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
        return f"{self.total([self.across])} >= {LEAST} && {self.total([self.nest.lane])} >= {LEAST}"

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
        held = [f"{t.stored} {t.name}_held[{self.steps}];" for t in self.tiles]
        reads = [f"{t.name}_held[j] = {t.load};" for t in self.tiles]
        puts = [f"{t.name}[threadIdx.y + {self.rows} * j][threadIdx.x] = {t.name}_held[j];" for t in self.tiles]
        scope = Scope()
        for t in self.tiles:
            element = f"{t.name}_element"
            scope.lines.append(f"const {t.ctype} {element} = {t.name}[threadIdx.x][threadIdx.y + {self.rows} * j];")
            scope.known[t.load] = element
        stores = [line for buffer in self.stores for line in self.store(buffer, scope)]
        return [
            *(f"__shared__ {t.stored} {t.name}[{self.side}][{self.row_of(t)}];" for t in self.tiles),
            f"const uint32_t lanes = uint32_t({lane}), tiles = lanes * uint32_t({across});",
            f"const int64_t first_l = int64_t(blockIdx.x % lanes) * {self.side};",
            f"const int64_t first_a = int64_t(blockIdx.x % tiles / lanes) * {self.side};",
            *self.indices(rest, "(blockIdx.x / tiles)"),
            *held,
            *self.each(reads, along=self.across, other=self.nest.lane),
            *self.each(puts, along=self.across, other=self.nest.lane),
            "__syncthreads();",
            *self.each([*scope.lines, *stores], along=self.nest.lane, other=self.across),
        ]

    @property
    def rows(self) -> int:
        """Return how many rows of a tile a block takes at once."""
        return THREADS // self.side

    @property
    def steps(self) -> int:
        """Return how many elements a thread takes."""
        return self.side // self.rows

    def row_of(self, tile: Tile) -> int:
        """Return the elements of a tile's row, those included that keep its columns apart."""
        return self.side + max(1, BANK // tile.itemsize)

    def each(self, lines: list[str], *, along: Loop, other: Loop) -> list[str]:
        """Return the lines for each of a thread's elements: neighbouring threads are neighbours `along` a loop."""
        first = {loop.var: f"first_{'a' if loop is self.across else 'l'}" for loop in (along, other)}
        inside = " && ".join(f"{loop.var} < {self.total([loop])}" for loop in (along, other))
        return [
            f"#pragma unroll {min(self.steps, 16)}",
            f"for (int j = 0; j < {self.steps}; ++j) {{",
            f"  const int64_t {along.var} = {first[along.var]} + threadIdx.x;",
            f"  const int64_t {other.var} = {first[other.var]} + threadIdx.y + {self.rows} * j;",
            f"  if ({inside}) {{",
            *indent(indent(lines)),
            "  }",
            "}",
        ]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        lane, across = self.counts()
        rest = [loop for loop in self.nest.outer if loop is not self.across]
        grid = f"blocks({' * '.join([*([self.total(rest)] if rest else []), f'({lane})', f'({across})'])})"
        return [f"{name}<<<{grid}, dim3({self.side}, {self.rows}), 0, stream>>>({', '.join(arguments)});"]


def steps_by_one(access: Access, loop: Loop) -> bool:
    """Return whether neighbours along the loop are neighbours in memory, and nothing but the loop says where."""
    return access.steps.get(loop.leaves[-1]) == {(): 1} and not access.values


def turned_region(region: Region, function: Function, sizes: Sizes, parameters: CudaParameters) -> TurnedPoints | None:
    """Return the kernel that takes a region's tiles, if it reads across what it writes."""
    found = TurnedPoints.of(region, function, sizes, parameters)
    return found if found.find() else None
