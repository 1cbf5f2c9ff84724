"""CUDA for sums over columns: a thread takes several neighbouring columns with each load.

Comes in: a column region that reduces once and stores what the columns come to, of elements of one or two bytes, or one
that stores on the way what it adds up. Goes out: a second kernel for it, beside the one in which a thread loads one
element at a time, and goes over its columns once more to store.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.reduction_levels import accumulator, around, indent
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.vectorized import VectorizedRegion, narrowest
from rag_kernels.offline.cuda.reduce_loops import count_of
from rag_kernels.offline.ir import values as ir

LOADED_BYTES = 16  # of a row at once, by each thread
FULL = 200  # blocks that keep a device busy


@dataclass(slots=True)
class WideColumns(VectorizedRegion):
    """Prints a kernel whose threads have `width` columns each; every reduction has an array of so many."""

    def serves(self) -> bool:
        """Return whether the region is one pass over columns, and settle how many a thread takes."""
        lane = self.nest.lane
        on_the_way = self.inner_stores()
        once = self.top == 1 and not any(self.level[v] for v in on_the_way.values())
        if lane is None or not once or self.has_scan() or (self.solo() and not self.gathers_alone()):
            return False
        rows = count_of(self.nest.outer)
        widths = [w for w in (8, 4, 2) if w * narrowest(self, lane) <= LOADED_BYTES and lane.count % w == 0]
        if self.solo():
            self.width = next((w for w in widths if rows * lane.count // w >= FULL * self.parameters.threads), 1)
            return self.width > 1
        full = [w for w in widths if rows * (lane.count // (32 * w)) >= FULL]
        self.width = (full or widths[-1:] or [1])[0]
        return self.width > 1 and (narrowest(self, lane) < 4 or bool(on_the_way))

    def gathers_alone(self) -> bool:
        """Return whether a thread alone adds up a few rows of a table that lie anywhere."""
        apart = any(access.values for v, access in self.nest.accesses.items() if self.is_inner(v))
        windows = any(leaf.window for loop in self.nest.reduced for leaf in loop.leaves)
        return apart and not (windows or self.keeps_columns() or self.inner_stores())

    def added_to(self, name: str, value: ir.Reduce, acc_type: str) -> str:
        return f"{name}[u]"

    def column(self) -> list[str]:
        quad, alone = self.quad, self.solo()
        head = [
            f"const uint32_t tiles = uint32_t(({quad.size} + blockDim.x - 1) / blockDim.x);",
            "const int64_t wanted = int64_t(blockIdx.x % tiles) * blockDim.x + threadIdx.x;",
            f"const bool active = wanted < {quad.size};",
            f"const int64_t {quad.var} = active ? wanted : 0;  // idle threads take part in the barriers only",
            *self.indices(self.nest.outer, "(blockIdx.x / tiles)"),
        ]
        if alone:
            head = [
                "const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
                f"if (t >= {self.total([*self.nest.outer, quad])}) return;",
                *self.indices([*self.nest.outer, quad], "t"),
            ]
        scope = Scope()
        self.begin(scope)
        inner, tail, joined = self.open_inner(scope), Scope(scope), list[str]()
        for value in self.reductions(1):
            name, ctype, wide = self.printer.name("acc"), CTYPES[value.dtype], accumulator(value)
            kind = wide if self.reduced_count() > 16384 or wide != "double" else ctype
            start = f"{kind}({start_of(value.kind, value.dtype)})"
            scope.lines += [f"{kind} {name}[{self.width}];", *self.every(f"{name}[u] = {start};")]
            guard = " && ".join(self.printer.emit(g, inner) for g in value.guards)
            block = Scope(inner) if guard else inner
            line = self.step(value, name, kind, scope, block)
            inner.lines += [f"if ({guard}) {{", *indent([*block.lines, line]), "}"] if guard else [line]
            functor = f"{C[value.kind].functor}()"
            if kind == "float":
                joined.append(f"column_reduce_each({name}, {functor}, {start});")
            else:  # of which shared memory would not hold so many
                joined += self.every(f"{name}[u] = column_reduce({name}[u], {functor}, {start});")
            tail.known[value] = f"{ctype}({name}[u])"
        on_the_way = self.inner_stores()
        kept = [line for buffer in on_the_way for line in self.store(buffer, inner)]
        inner.lines += kept
        inside = self.quad_lines(inner.lines)
        if alone:
            first, *rest = around(self.nest.reduced, inside)
            loop, joined = ["#pragma unroll 4", first, *rest], []
        else:
            inside = [*self.indices(self.nest.reduced, "k"), *inside]
            loop = self.walk(f"(active ? {self.total(self.nest.reduced)} : 0)", "y", inside)
        last = self.open_inner(tail)
        stores = [line for buffer in self.stores if buffer not in on_the_way for line in self.store(buffer, last)]
        stored = self.quad_lines([*last.lines, *stores])
        end = stored if alone else ["if (active && threadIdx.y == 0) {", *indent(stored), "}"]
        return [*head, *scope.lines, *loop, *joined, *end]

    def every(self, line: str) -> list[str]:
        """Return a statement for each of a thread's columns."""
        return ["#pragma unroll", f"for (int u = 0; u < {self.width}; ++u) {line}"]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        if self.solo():
            return self.one_thread_each([*self.nest.outer, self.quad], name, arguments)
        grid = f"blocks(({self.total(self.nest.outer)}) * (({self.quad.size} + 31) / 32))"
        check = f"small({self.total(self.nest.reduced)});  // of a column"
        return [check, f"{name}<<<{grid}, dim3(32, TEAM), 0, stream>>>({', '.join(arguments)});"]
