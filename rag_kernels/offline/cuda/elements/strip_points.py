"""CUDA for pointwise regions that no vectors serve (images of odd sizes): a warp takes strips of a row.

Comes in: a point region of several loops. Goes out: a second kernel in which a warp finds its row once for four
elements of each lane, 32 apart, so that neighbouring threads have neighbouring elements; and the C condition under
which it may run. To take a number apart into the indices of three loops takes more instructions than most elements.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Loop
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.reduce_loops import count_of
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import Region

EACH, STRIP = 4, 128  # elements of a thread, and of a warp
FILLED = 0.75  # of the strips of a row, at least
FULL = 1 << 20  # elements that keep a device busy, four a thread


@dataclass(slots=True)
class StripPoints(CudaRegion):
    """Prints a kernel whose warps take strips of the lane."""

    def serves(self) -> bool:
        """Return whether the region is of rows that fill strips."""
        lane = self.nest.lane
        if self.nest.schedule != "point" or lane is None or not self.nest.outer:
            return False
        full = count_of([*self.nest.outer, lane]) >= FULL
        return full and lane.count >= FILLED * STRIP * -(-lane.count // STRIP)

    @property
    def strips(self) -> Loop:
        """Return the loop over the strips of a row."""
        assert self.nest.lane
        lane = self.nest.lane
        return Loop(lane.leaves, f"{lane.var}_strip", f"(({lane.size} + {STRIP - 1}) / {STRIP})", 1)

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        assert self.nest.lane
        return f"{self.total([self.nest.lane])} >= {int(FILLED * STRIP)}"

    def point(self) -> list[str]:
        assert self.nest.lane
        lane, loops = self.nest.lane, [*self.nest.outer, self.strips]
        scope = Scope()
        stores = [line for buffer in self.stores for line in self.store(buffer, scope)]
        inside = [*scope.lines, *stores]
        return [
            "const int64_t t = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / 32;",
            f"if (t >= {self.total(loops)}) return;",
            *self.indices(loops, "t"),
            f"if ({STRIP} * {self.strips.var} + {STRIP} <= {lane.size}) {{  // no look at each element: loads go ahead",
            *indent(self.each(inside)),
            "} else {",
            *indent(self.each([f"if ({lane.var} < {lane.size}) {{", *indent(inside), "}"])),
            "}",
        ]

    def each(self, lines: list[str]) -> list[str]:
        """Return the lines for each element of a thread."""
        assert self.nest.lane
        return [
            "#pragma unroll",
            f"for (int u = 0; u < {EACH}; ++u) {{",
            f"  const int64_t {self.nest.lane.var} = {STRIP} * {self.strips.var} + 32 * u + threadIdx.x % 32;",
            *indent(lines),
            "}",
        ]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        count = f"small({self.total([*self.nest.outer, self.strips])})"
        grid = f"blocks((32 * {count} + THREADS - 1) / THREADS)"
        return [f"{name}<<<{grid}, THREADS, 0, stream>>>({', '.join(arguments)});"]


def strip_points(region: Region, function: Function, sizes: Sizes, parameters: CudaParameters) -> StripPoints | None:
    """Return the kernel that takes strips of rows, if the region has such."""
    found = StripPoints.of(region, function, sizes, parameters)
    return found if parameters.vector > 1 and found.serves() else None
