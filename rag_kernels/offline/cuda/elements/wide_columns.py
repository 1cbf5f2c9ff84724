"""CUDA for sums over columns: a thread takes several neighbouring columns with each load.

Comes in: a column region that reduces once and stores what the columns come to, of elements of one or two bytes or of
columns so many that a thread walks its own alone; or one that stores on the way what it adds up. A maximum and the sum
of exponentials below it are reduced together. Goes out: a second kernel for it, beside the one in which a thread loads
one element at a time, and goes over its columns once more to store.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.operator_texts import Form
from rag_kernels.offline.codegen.reduction_levels import accumulator, around, indent
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.found_vectors import narrowest
from rag_kernels.offline.cuda.elements.neighbours import has_reduction
from rag_kernels.offline.cuda.elements.vectorized import VectorizedRegion
from rag_kernels.offline.cuda.reduce_loops import count_of
from rag_kernels.offline.cuda.thread_loops import walked
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.patterns import exponentials

LOADED_BYTES = 16  # of a row at once, by each thread
FULL = 200  # blocks that keep a device busy


@dataclass(slots=True)
class WideColumns(VectorizedRegion):
    """Prints a kernel whose threads have `width` columns each; every reduction has an array of so many."""

    some_first: list[str] = field(default_factory=list)  # what declares room for some elements of each column
    some_last: list[str] = field(default_factory=list)  # and what takes them together

    def serves(self) -> bool:
        """Return whether the region is one pass over columns, and settle how many a thread takes."""
        lane = self.nest.lane
        on_the_way = self.inner_stores()
        once = self.top == 1 and not any(self.level[v] for v in on_the_way.values())
        walks = self.walks_columns()
        alone = walks or self.gathers_alone()
        if lane is None or not (once or walks) or self.has_scan() or (self.solo() and not alone):
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

    def head(self) -> list[str]:
        """Return what tells a thread its columns."""
        quad = self.quad
        if self.solo():
            return [
                "const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
                f"if (t >= {self.total([*self.nest.outer, quad])}) return;",
                *self.indices([*self.nest.outer, quad], "t"),
            ]
        return [
            f"const uint32_t tiles = uint32_t(({quad.size} + blockDim.x - 1) / blockDim.x);",
            "const int64_t wanted = int64_t(blockIdx.x % tiles) * blockDim.x + threadIdx.x;",
            f"const bool active = wanted < {quad.size};",
            f"const int64_t {quad.var} = active ? wanted : 0;  // idle threads take part in the barriers only",
            *self.indices(self.nest.outer, "(blockIdx.x / tiles)"),
        ]

    def column(self) -> list[str]:
        scope = Scope()
        self.begin(scope)
        steady = Scope(scope)
        if self.walks_columns():
            self.settle_steady(steady)
        inner, tail, joined = self.open_inner(steady), Scope(scope), list[str]()
        ends = self.pairs(scope, inner, tail)
        for value in self.reductions(1):
            if value in tail.known:
                continue
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
        if self.walks_columns():
            loop, joined = self.walked([*steady.lines, *inside]), []
        elif self.solo():
            loop, joined = ["#pragma unroll 4", *around(self.nest.reduced, inside)], []
        else:
            inside = [*self.indices(self.nest.reduced, "k"), *inside]
            loop = self.walk(f"(active ? {self.total(self.nest.reduced)} : 0)", "y", inside)
        loop += ends
        last = self.open_inner(tail)
        stores = [line for buffer in self.stores if buffer not in on_the_way for line in self.store(buffer, last)]
        stored = self.quad_lines([*last.lines, *stores])
        end = stored if self.solo() else ["if (active && threadIdx.y == 0) {", *indent(stored), "}"]
        return [*self.head(), *scope.lines, *loop, *joined, *end]

    def pairs(self, scope: Scope, inner: Scope, tail: Scope) -> list[str]:
        """Take maxima and the sums of exponentials below them together, and return what follows the loop."""
        ends = list[str]()
        for value in self.reductions(2):
            pair = exponentials(value)
            assert pair
            top, total = self.printer.name("top"), self.printer.name("acc")
            scope.lines += [f"float {top}[{self.width}], {total}[{self.width}];"]
            scope.lines += self.every(f"{top}[u] = -INFINITY, {total}[u] = 0;")
            near = "_near" * (self.printer.form is Form.CUDA_NEAR)
            x, text = self.printer.name("x"), self.printer.emit(pair[0].arg, inner)
            inner.lines.append(f"{x}[u][{self.number}] = {text};")
            self.some_first.append(f"float {x}[{self.width}][{self.steps}];")
            self.some_last += self.every(f"take_columns{near}({top}[u], {total}[u], {x}[u]);")
            if not pair[1]:
                ends += self.every(f"{total}[u] += {top}[u] - {top}[u];  // no number where the maximum is none")
            tail.known |= {pair[0]: f"{top}[u]", value: f"{total}[u]"}
        return ends

    @property
    def steps(self) -> int:
        """Return how many elements of a column are taken together where a maximum and a sum of exponentials are."""
        last = self.nest.reduced[-1]
        return next((n for n in (8, 4, 2) if n <= self.together() and last.count % n == 0), 1)

    @property
    def number(self) -> str:
        """Return the number of an element among these, as C."""
        return f"{self.nest.reduced[-1].var} - {self.nest.reduced[-1].var}_0"

    def walked(self, lines: list[str]) -> list[str]:
        """Return the loops of a thread over its columns: the innermost in steps of what is taken together."""
        *before, last = self.nest.reduced
        if not self.some_first:
            return walked(self.nest.reduced, lines, self.together())
        each = [
            "#pragma unroll",
            f"for (int64_t {last.var} = {last.var}_0; {last.var} < {last.var}_0 + {self.steps}; ++{last.var}) {{",
            *indent(lines),
            "}",
        ]
        head = f"for (int64_t {last.var}_0 = 0; {last.var}_0 < {last.size}; {last.var}_0 += {self.steps}) {{"
        return around(before, [head, *indent([*self.some_first, *each, *self.some_last]), "}"])

    def conditions(self) -> list[str]:
        last = self.nest.reduced[-1]
        whole = [f"({last.size}) % {self.steps} == 0"] if self.some_first and self.steps > 1 else []
        return [*VectorizedRegion.conditions(self), *whole]

    def settle_steady(self, scope: Scope) -> None:
        """Compute what an element's columns have in common first: nvcc does not, where functions branch."""
        assert self.nest.lane
        lane, seen = set(self.nest.lane.leaves), set[ir.Value]()

        def visit(value: ir.Value) -> None:
            if value in seen or isinstance(value, ir.Const | ir.Size | ir.Reduce):
                return
            seen.add(value)
            if isinstance(value, ir.Load | ir.Op) and not ir.tree_atoms(value) & lane and not has_reduction(value):
                self.printer.emit(value, scope)
                return
            for child in ir.children(value):
                visit(child)

        for value in self.reductions(1):
            if not value.guards:
                visit(value.arg)

    def every(self, line: str) -> list[str]:
        """Return a statement for each of a thread's columns."""
        return ["#pragma unroll", f"for (int u = 0; u < {self.width}; ++u) {line}"]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        if self.solo():
            return self.one_thread_each([*self.nest.outer, self.quad], name, arguments)
        grid = f"blocks(({self.total(self.nest.outer)}) * (({self.quad.size} + 31) / 32))"
        check = f"small({self.total(self.nest.reduced)});  // of a column"
        return [check, f"{name}<<<{grid}, dim3(32, TEAM), 0, stream>>>({', '.join(arguments)});"]
