"""Running totals down columns in CUDA: a block's threads share some columns, each of them a stretch of rows.

Comes in: a column region that scans once and stores along its rows. Goes out: its kernel: each thread totals its
stretch, adds what the stretches before came to, and runs through its own again. Where columns alone fill a device one
thread takes each, which reads once (`reduce_loops.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.reduction_levels import accumulator, indent
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.reduce_loops import count_of
from rag_kernels.offline.cuda.region import CudaRegion
from rag_kernels.offline.ir import values as ir

LEAST_ROWS, MOST_COLUMNS = 256, 1 << 16  # what is worth stretches of its own
SIDE_BY_SIDE, SHARED = 8, 512  # columns of a block, which are a sector of memory; its threads
FEW_BLOCKS = 128  # which leave processors idle: each has twice as many threads, with four times as many loads under way


@dataclass(slots=True)
class ColumnScans(CudaRegion):
    """Prints a kernel whose blocks have a few columns and many stretches of rows."""

    def serves(self) -> bool:
        """Return whether the region is one pass that scans long columns, too few for a thread each."""
        nest = self.nest
        if nest.schedule != "column" or nest.lane is None or self.top or not self.has_scan():
            return False
        nested = any(isinstance(v, ir.Scan) for scan in self.running() for v in ir.walk(scan.arg))
        columns = count_of([*nest.outer, nest.lane])
        inner = set(self.inner_stores()) == set(self.stores)
        return inner and not nested and self.reduced_count() >= LEAST_ROWS and columns <= MOST_COLUMNS

    def running(self) -> list[ir.Scan]:
        """Return the running totals."""
        return [v for v in ir.walk(*self.values) if isinstance(v, ir.Scan)]

    def column(self) -> list[str]:
        """Return two runs over a thread's rows: what they come to, then what is stored."""
        lane, total = self.nest.lane, self.total(self.nest.reduced)
        assert lane
        scope, scans = Scope(), self.running()
        self.settle([*(v.arg for v in scans), *self.values], scope)
        names = {v: self.printer.name("s") for v in scans}
        start = {v: f"{accumulator(v)}({start_of(v.kind, v.dtype)})" for v in scans}
        first = self.open_inner(scope)
        for v in scans:
            text = self.printer.emit(v.arg, first)
            first.lines.append(C[v.kind].step.format(a=names[v], v=text))
        second = self.open_inner(scope)
        for v in scans:
            text = self.printer.emit(v.arg, second)
            second.lines.append(C[v.kind].step.format(a=names[v], v=text))
            second.known[v] = self.printer.assign(v, f"{CTYPES[v.dtype]}({names[v]})", second)
        stores = [line for buffer in self.stores for line in self.store(buffer, second)]
        return [
            f"const uint32_t tiles = uint32_t(({lane.size} + blockDim.x - 1) / blockDim.x);",
            "const int64_t l_wanted = int64_t(blockIdx.x % tiles) * blockDim.x + threadIdx.x;",
            f"const bool active = l_wanted < {lane.size};",
            "const int64_t l = active ? l_wanted : 0;  // idle threads take part in the barriers only",
            *self.indices(self.nest.outer, "(blockIdx.x / tiles)"),
            f"const int64_t part = ({total} + blockDim.y - 1) / blockDim.y, begin = part * threadIdx.y;",
            f"const int64_t end = !active ? 0 : begin + part < {total} ? begin + part : {total};",
            *scope.lines,
            *(f"{accumulator(v)} {names[v]} = {start[v]};" for v in scans),
            *self.through(first.lines),
            *(f"{names[v]} = column_before({names[v]}, {C[v.kind].functor}(), {start[v]});" for v in scans),
            *self.through([*second.lines, *stores]),
        ]

    def through(self, lines: list[str]) -> list[str]:
        """Return the loop over a thread's rows."""
        head = "for (int64_t k = begin; k < end; ++k) {"
        return [
            f"#pragma unroll {16 if self.has_few_blocks() else 4}",
            head,
            *indent([*self.indices(self.nest.reduced, "k"), *lines]),
            "}",
        ]

    def has_few_blocks(self) -> bool:
        """Return whether columns are too few for a block on each processor of a large device."""
        assert self.nest.lane
        return count_of([*self.nest.outer, self.nest.lane]) <= FEW_BLOCKS * SIDE_BY_SIDE

    def block_threads(self) -> int:
        return 2 * SHARED if self.has_few_blocks() else SHARED

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        outer, lane = self.total(self.nest.outer), self.nest.lane
        assert lane
        grid = f"blocks(({outer}) * (({lane.size} + {SIDE_BY_SIDE - 1}) / {SIDE_BY_SIDE}))"
        block = f"dim3({SIDE_BY_SIDE}, {self.block_threads() // SIDE_BY_SIDE})"
        check = f"small({self.total(self.nest.reduced)});  // of a column"
        return [check, f"{name}<<<{grid}, {block}, 0, stream>>>({', '.join(arguments)});"]
