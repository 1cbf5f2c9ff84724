"""CUDA for windows whose results are turned (a convolution over time between two projections).

Comes in: a column region whose windows slide along the innermost loop, and whose results lie side by side along another
one. Goes out: a second kernel for it, and the C condition under which it may run. Neighbouring lanes take neighbours of
that other loop, so that a warp stores them together; each reads a whole sector of its own row at once, as
`window_lanes.py` does, and the warps of a block take stretches of a row that follow each other.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Loop
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.neighbours import is_step
from rag_kernels.offline.cuda.elements.window_lanes import VECTOR_BYTES, WindowLanes
from rag_kernels.offline.cuda.reduce_loops import count_of
from rag_kernels.offline.cuda.region import WARP, CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir.dtypes import ITEMSIZE

WIDTHS = (16, 8, 4, 2)  # windows of a thread
SECTOR = 32  # bytes of a row that come from memory together
LEAST_THREADS = 1 << 16  # below which threads take less each


@dataclass(slots=True)
class TurnedWindows(WindowLanes):
    """Prints a kernel whose threads take `width` windows each, and whose warps store along another loop."""

    @property
    def across(self) -> Loop | None:
        """Return the loop along which all results lie side by side, if there is one that fills a warp."""
        stores = self.nest.stores.values()
        found = (x for x in self.nest.outer if x.count >= WARP and all(is_step(a, x) for a in stores))
        return next(found, None)

    def width_of(self, lane: Loop, vector_bytes: int) -> int:
        """Return how many windows a thread takes: as many as step over a sector, of what slides."""
        steps = [a.stride(lane.leaves[0]) * ITEMSIZE.get(v.storage, 8) for v, a in self.nest.accesses.items()]
        threads, most = count_of([*self.nest.outer, lane]), SECTOR / max([*steps, 1])
        fits = (w for w in WIDTHS if w <= most and lane.count % w == 0 and threads // w >= LEAST_THREADS)
        return next(fits, 1)

    def stores_fit(self) -> bool:
        return self.across is not None

    def check_stores(self) -> None:
        assert self.nest.lane
        self.checks[f"({self.nest.lane.size}) % {self.width} == 0"] = None

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        return " && ".join([*self.checks, self.aligned([s.value.buffer for s in self.spans.values()])])

    def store(self, buffer: str, scope: Scope) -> list[str]:
        return CudaRegion.store(self, buffer, scope)

    @property
    def chunks(self) -> Loop:
        """Return the loop over warps along `across`."""
        across = self.across
        assert across
        size = f"(({across.size} + {WARP - 1}) / {WARP})"
        return Loop(across.leaves, f"{across.var}_q", size, -(-across.count // WARP))

    @property
    def warp_loops(self) -> list[Loop]:
        """Return the loops of which a warp has a step: those of a block follow each other along the rows."""
        return [*(x for x in self.nest.outer if x is not self.across), self.chunks, self.quad]

    def column(self) -> list[str]:
        across, lane, loops = self.across, self.nest.lane, self.warp_loops
        assert across and lane
        each = self.passes("column", "true", "true")
        return [
            f"const int64_t t = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / {WARP};",
            f"if (t >= {self.total(loops)}) return;",
            *self.indices(loops, "t"),
            f"const int64_t {across.var} = {WARP} * {self.chunks.var} + threadIdx.x % {WARP};",
            f"if ({across.var} >= {across.size}) return;",
            *self.reads,
            "#pragma unroll",
            f"for (int u = 0; u < {self.width}; ++u) {{",
            f"  const int64_t {lane.var} = {self.width} * {self.quad.var} + u;",
            *indent(each),
            "}",
        ]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        lanes = Loop((), "", str(WARP), WARP)
        return self.one_thread_each([*self.warp_loops, lanes], name, arguments)


def turned_windows(
    region: Region, function: Function, sizes: Sizes, parameters: CudaParameters
) -> TurnedWindows | None:
    """Return the kernel that stores across what its windows read along, if the region is such windows."""
    for vector_bytes in VECTOR_BYTES if parameters.vector > 1 else ():
        found = TurnedWindows.of(region, function, sizes, parameters)
        if found.find(vector_bytes):
            return found
    return None
