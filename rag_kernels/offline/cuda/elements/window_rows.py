"""CUDA for depthwise convolutions of images: a thread takes windows of neighbouring rows too, and reads these once.

Comes in: a region that `window_lanes.py` serves, whose windows slide along the next outer loop as well, one row a step.
Goes out: a kernel whose threads take four rows of neighbouring windows; the last rows overlap those before. What
lies outside of an image is read as zero, which is right where weights are finite; a thread that finds one that is not
computes each window by itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Loop
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.cuda.elements.window_lanes import VECTOR_BYTES, WindowLanes
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir

ROWS, LEAST_STEPS = 4, 3  # windows of a thread from row to row; steps of a window's longest loop
MOST_ROW_BYTES = 512  # that a thread keeps of a tensor
LEAST_THREADS = 1 << 16  # below which rows are better apart


@dataclass(slots=True)
class WindowRows(WindowLanes):
    """Prints a kernel whose threads take `rows` times `width` windows each."""

    rows: int = ROWS
    alone: list[str] = field(default_factory=list)  # statements that compute one window by itself

    @property
    def line(self) -> Loop:
        """Return the loop from row to row."""
        return self.nest.outer[-1]

    @property
    def most_bytes(self) -> int:
        return MOST_ROW_BYTES

    def slid_along(self, loop: Loop, value: ir.Load) -> bool:
        """Return whether windows of neighbouring rows read this tensor one row apart, as this loop does."""
        along = [f for f in value.index[:-1] if isinstance(f, ir.Form) and set(f.terms) & {(self.line.leaves[0], 1)}]
        terms = {(leaf, n) for f in along for atom, n in f.terms for leaf in atom.leaves()}
        return len(along) == 1 and terms == {(self.line.leaves[0], 1), (loop.leaves[0], 1)}

    def read_along(self, loop: Loop, value: ir.Load) -> Loop:
        more = (self.rows - 1) * self.slid_along(loop, value)
        return Loop(loop.leaves, loop.var, f"({loop.size} + {more})", loop.count + more) if more else loop

    def seen_along(self, loop: Loop, value: ir.Load) -> Loop:
        return replace(self.read_along(loop, value), var=f"{loop.var} + v") if self.slid_along(loop, value) else loop

    def find_rows(self, vector_bytes: int) -> bool:
        """Record what is read, and return whether windows of neighbouring rows share all of it."""
        outer = self.nest.outer
        if not outer or len(self.line.leaves) != 1 or self.line.count < self.rows or not self.find(vector_bytes):
            return False
        guarded = [v for v in ir.walk(*self.values) if isinstance(v, ir.Reduce) and v.guards]
        shared = [any(self.slid_along(loop, s.value) for loop in self.nest.reduced) for s in self.spans.values()]
        threads = math.prod(loop.count for loop in self.thread_loops)
        if not all(shared) or not all(v in self.factors for v in guarded) or threads < LEAST_THREADS:
            return False
        self.checks[f"{self.line.size} >= {self.rows}"] = None
        return True

    def guards_of(self, value: ir.Reduce) -> tuple[ir.Index, ...]:
        return ()

    @property
    def thread_loops(self) -> list[Loop]:
        """Return the loops of which a thread has a step."""
        line = self.line
        size = f"(({line.size} + {self.rows - 1}) / {self.rows})"
        lines = Loop(line.leaves, f"{line.var}_q", size, -(-line.count // self.rows))
        return [*self.nest.outer[:-1], lines, self.quad]

    def column(self) -> list[str]:
        assert self.nest.lane
        nest, lane, line, loops = self.nest, self.nest.lane, self.line, self.thread_loops
        types = {b: f"Pack<{stored_type(self.printer.storage[b], 'cuda')}, {self.width}>" for b in self.stores}
        apart = self.apart()
        each = self.passes("column", "true", "true")
        row = f"const int64_t {line.var} = {line.var}_0"
        column = f"const int64_t {lane.var} = {self.width} * {self.quad.var}"
        puts = [
            f"*reinterpret_cast<{types[b]}*>(&{self.printer.pointers[b]}[{nest.offset(nest.stores[b])}]) = "
            f"{self.vector(b)};"
            for b in self.stores
        ]
        return [
            "const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
            f"if (t >= {self.total(loops)}) return;",
            *self.indices(loops, "t"),
            *self.first_row(),
            f"{row};",
            *self.reads,
            *apart,
            "#pragma unroll",
            f"for (int v = 0; v < {self.rows}; ++v) {{",
            f"  {row} + v;",
            *(f"  {types[b]} {self.vector(b)};" for b in self.stores),
            "  #pragma unroll",
            f"  for (int u = 0; u < {self.width}; ++u) {{",
            f"    {column} + u;",
            *indent(indent(each)),
            "  }",
            f"  {column};",
            *indent(puts),
            "}",
        ]

    def first_row(self) -> list[str]:
        """Return the declaration of a thread's first row: the last ones overlap those before, so that none is less."""
        line, rows = self.line, self.rows
        last, own = f"{line.size} - {rows}", f"{rows} * {line.var}_q"
        return [f"const int64_t {line.var}_0 = {own} < {last} ? {own} : {last};"]

    def apart(self) -> list[str]:
        """Return the statements that compute each window by itself, where what lies outside does not count as zero."""
        assert self.nest.lane
        if not self.guarded:
            return []
        finite = self.finite(list(self.factors.values()))
        return [
            f"if (!{finite}) {{",
            "  #pragma unroll 1",
            f"  for (int w = 0; w < {self.rows * self.width}; ++w) {{",
            f"    const int64_t {self.line.var} = {self.line.var}_0 + w / {self.width};",
            f"    const int64_t {self.nest.lane.var} = {self.width} * {self.quad.var} + w % {self.width};",
            *indent(indent(self.alone)),
            "  }",
            "  return;",
            "}",
        ]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        return self.one_thread_each(self.thread_loops, name, arguments)


def window_rows(region: Region, function: Function, sizes: Sizes, parameters: CudaParameters) -> WindowRows | None:
    """Return the kernel that takes windows of neighbouring rows together, if they are weighted sums that slide so."""
    for vector_bytes in VECTOR_BYTES if parameters.vector > 1 else ():
        found = WindowRows.of(region, function, sizes, parameters)
        steps = max((loop.count for loop in found.nest.reduced), default=0)
        if steps >= LEAST_STEPS and found.find_rows(vector_bytes):
            found.alone = CudaRegion.of(region, function, sizes, parameters).passes("column", "true", "true")
            return found
    return None
