"""CUDA for windows along the innermost loop alone (pools of sequences): a thread takes neighbouring ones, and stores
their results together.

Comes in: a column region whose columns are short windows that no outer loop slides. Goes out: a second kernel for it,
and the C condition under which it may run. Neighbouring windows share the work of computing indices, and most of what
they read comes from the cache.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Loop, text_of
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.region import SHORT_COLUMN, CudaParameters, CudaRegion
from rag_kernels.offline.cuda.vectorized import neighbours, others
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir.dtypes import ITEMSIZE

WIDTH = 4  # windows of a thread


@dataclass(slots=True)
class WindowLanes(CudaRegion):
    """Prints a kernel whose threads take `WIDTH` windows each."""

    def serves(self) -> bool:
        """Return whether the region is one pass over short windows of the lane, whose results lie side by side."""
        nest = self.nest
        if nest.schedule != "column" or nest.lane is None or nest.lane.count % WIDTH or self.has_scan():
            return False
        windows = all(leaf.window for loop in nest.reduced for leaf in loop.leaves)
        short = windows and self.reduced_count() <= SHORT_COLUMN and not self.stepped() and not self.keeps_columns()
        whole = all(self.printer.storage[b] in ITEMSIZE for b in nest.stores)
        return (
            short
            and whole
            and not self.inner_stores()
            and all(neighbours(access, nest.lane, nest, WIDTH) for access in nest.stores.values())
        )

    @property
    def quad(self) -> Loop:
        """Return the loop over a thread's windows together."""
        assert self.nest.lane
        lane = self.nest.lane
        return Loop(lane.leaves, f"{lane.var}_q", f"({lane.size}) / {WIDTH}", lane.count // WIDTH)

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        assert self.nest.lane
        sizes = {f"({self.nest.lane.size}) % {WIDTH} == 0": None}
        for access in self.nest.stores.values():
            steps = [access.steps.get(loop.leaves[-1], {}) for loop in others(self.nest.lane, self.nest)]
            sizes |= {f"({text_of(step)}) % {WIDTH} == 0": None for step in [*steps, access.constant] if any(step)}
        pointers = [self.printer.pointers[b][:-2] for b in self.stores]
        data = ", ".join(f"{p}_data" if p in self.scratch else f"{p}.data" for p in pointers)
        return " && ".join([*sizes, f"aligned({{{data}}})"])

    def vector(self, buffer: str) -> str:
        """Return the name of what a thread stores in a buffer."""
        return f"{self.printer.pointers[buffer][:-2]}_v"

    def store(self, buffer: str, scope: Scope) -> list[str]:
        return [f"{self.vector(buffer)}.x[u] = {self.printer.emit(self.stores[buffer], scope)};"]

    def column(self) -> list[str]:
        """Return the windows of a thread one after the other, unrolled, and their results stored together."""
        assert self.nest.lane
        nest, lane, loops = self.nest, self.nest.lane, [*self.nest.outer, self.quad]
        types = {b: f"Pack<{stored_type(self.printer.storage[b], 'cuda')}, {WIDTH}>" for b in self.stores}
        puts = [
            f"*reinterpret_cast<{types[b]}*>(&{self.printer.pointers[b]}[{nest.offset(nest.stores[b])}]) = "
            f"{self.vector(b)};"
            for b in self.stores
        ]
        return [
            "const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
            f"if (t >= {self.total(loops)}) return;",
            *self.indices(loops, "t"),
            *(f"{types[b]} {self.vector(b)};" for b in self.stores),
            "#pragma unroll",
            f"for (int u = 0; u < {WIDTH}; ++u) {{",
            f"  const int64_t {lane.var} = {WIDTH} * {self.quad.var} + u;",
            *indent(self.passes("column", "true", "true")),
            "}",
            f"const int64_t {lane.var} = {WIDTH} * {self.quad.var};",
            *puts,
        ]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        grid = f"blocks((small({self.total([*self.nest.outer, self.quad])}) + THREADS - 1) / THREADS)"
        return [f"{name}<<<{grid}, THREADS, 0, stream>>>({', '.join(arguments)});"]


def window_lanes(region: Region, function: Function, sizes: Sizes, parameters: CudaParameters) -> WindowLanes | None:
    """Return the kernel that takes neighbouring windows together, if the region is windows of its lane."""
    found = WindowLanes.of(region, function, sizes, parameters)
    return found if parameters.vector > 1 and found.serves() else None
