"""The passes of a region in CUDA: a team of threads takes a row or a column, reduces, scans, and finally stores.

Comes in: a nest. Goes out: statements for the body of a `__global__` function. A team lies along threadIdx.x (rows) or
threadIdx.y (columns); the partial results of its threads are joined after each pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.loop_nest import Loop
from rag_kernels.offline.codegen.operator_texts import Form
from rag_kernels.offline.codegen.reduction_levels import (
    RegionPrinter,
    accumulator,
    around,
    indent,
)
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda import thread_loops
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.reductions import Kind

SCANNED = 4  # neighbours that a thread takes of a row that is scanned
STRIPED = f"{32 * SCANNED} * (threadIdx.x / 32) + 32 * u + threadIdx.x % 32"  # those that a warp's lanes store together
MOST_TAPS = 64  # elements of a window that lies inside, added up without a loop
EXCHANGED_BYTES = 8  # of an element: shared memory of a block does for so many scans


@dataclass(slots=True)
class ReduceLoops(RegionPrinter):
    """Prints the passes over rows and columns; subclasses say how threads load and store."""

    known_loads: dict[str, str] = field(default_factory=dict)  # loads that a thread has done already, and where to
    before: list[str] = field(default_factory=list)  # of a scan: what comes before its values are known
    storing: bool = False  # in the pass that stores
    early: dict[str, str] | None = None  # in a pass that loads floats ahead: from where, by name
    striped: bool = False  # whether a warp's lanes store what they scanned side by side
    ends: bool = False  # whether no pass comes after this one

    def solo(self) -> bool:
        """Return whether one thread computes a column alone."""
        raise NotImplementedError

    def walks_columns(self) -> bool:
        """Return whether columns are so many that each thread walks one alone."""
        raise NotImplementedError

    def is_dear(self) -> bool:
        """Return whether the first pass computes costly values."""
        args = [v.arg for v in self.reductions(1)]
        return any(isinstance(v, ir.Op) and v.operator.traits.costly for v in ir.walk(*args))

    def together(self) -> int:
        """Return how many elements of a column a thread that walks it has under way."""
        return thread_loops.DEAR if self.is_dear() else thread_loops.WALKED

    def is_unrolled(self) -> bool:
        """Return whether such a thread's loop is unrolled."""
        raise NotImplementedError

    def scan_threads(self, each: int) -> int:
        """Return the threads of a row that is scanned, `each` elements a thread."""
        raise NotImplementedError

    def scanned_rows(self) -> int:
        """Return how many rows a block scans."""
        raise NotImplementedError

    def total(self, loops: list[Loop]) -> str:
        """Return the number of elements of these loops, as C."""
        return " * ".join(f"({loop.size})" if " " in loop.size else loop.size for loop in loops) or "1"

    def reduced_count(self) -> int:
        """Return the number of elements of a row or column of this problem."""
        return count_of(self.nest.reduced)

    def has_scan(self) -> bool:
        """Return whether the region has running totals."""
        return any(isinstance(v, ir.Scan) for v in ir.walk(*self.values))

    def indices(self, loops: list[Loop], flat: str) -> list[str]:
        """Return statements that turn a flat index into the variables of these loops."""
        if len(loops) < 2:
            return [f"const int64_t {loop.var} = {flat};" for loop in loops]
        rest = f"rest_{loops[0].var}"
        lines = [f"uint32_t {rest} = uint32_t({flat});"]
        for loop in reversed(loops[1:]):
            size = f"uint32_t({loop.size})"
            lines += [f"const int64_t {loop.var} = {rest} % {size};", f"{rest} /= {size};"]
        return [*lines, f"const int64_t {loops[0].var} = {rest};"]

    def passes(self, kind: str, active: str, first: str) -> list[str]:
        """Return all passes: one for each level of reductions, then one that stores.

        `kind` is "row" or "column"; `active` and `first` are C conditions: which threads have elements, and which of
        them stores a result.
        """
        scope = Scope()
        self.begin(scope)
        if kind == "row":
            self.load_early(scope)
        for level in range(1, self.top + 1):
            self.reduce_pass(level, kind, active, scope)
        return self.ending(scope, kind, active, first)

    def ending(self, scope: Scope, kind: str, active: str, first: str) -> list[str]:
        """Return the statements of a scope, and what stores behind all reductions."""
        inner_stores = self.inner_stores()
        if inner_stores:
            self.settle(list(inner_stores.values()), scope)
            self.storing, self.early = True, None
            inner = self.open_inner(scope)
            scanning = self.scans(list(inner_stores.values()), scope, inner, kind)
            block = Scope(inner)
            for buffer in inner_stores:
                block.lines += self.store(buffer, block)
            scope.lines += self.pass_loop(inner.lines, block.lines, kind, active, scanning)
            self.storing = False
        block = Scope(scope)
        for buffer in [b for b in self.stores if b not in inner_stores]:
            block.lines += self.store(buffer, block)
        alone = first == "true" or not block.lines
        return [*scope.lines, *(block.lines if alone else [f"if ({first}) {{", *indent(block.lines), "}"])]

    def begin(self, scope: Scope) -> None:
        """Compute what all passes need."""

    def load_early(self, scope: Scope) -> None:
        """Load what is stored of a row beside its reductions (a loss's target) before the row, not after it.

        What lies at a computed place is left: all threads would wait for that first.
        """
        inner_stores = self.inner_stores()
        last = [value for buffer, value in self.stores.items() if buffer not in inner_stores]
        for v in ir.walk(*last, enter=lambda v: not isinstance(v, ir.Reduce)):
            if isinstance(v, ir.Load) and not self.is_inner(v) and not self.nest.accesses[v].values:
                self.printer.emit(v, scope)

    def open_inner(self, scope: Scope) -> Scope:
        """Return the scope of what runs for every element of a pass."""
        inner = Scope(scope, early=self.early)
        inner.known.update(self.known_loads)
        return inner

    def added_to(self, name: str, value: ir.Reduce, acc_type: str) -> str:
        """Return the variable that takes an element of a reduction."""
        return name

    def settle(self, roots: list[ir.Value], scope: Scope) -> None:
        """Compute the values that a pass needs from before it."""
        for v in self.frontier(roots):
            self.printer.emit(v, scope)

    def reduce_pass(self, level: int, kind: str, active: str, scope: Scope) -> None:
        """Add the pass that completes every reduction of this level."""
        found = self.reductions(level)
        self.early = {} if self.loads_ahead(found, kind) else None
        roots = [v.arg for v in found] + [g for v in found for g in self.guards_of(v)]
        self.settle(roots, scope)
        inner = self.open_inner(scope)
        scanning = self.scans(roots, scope, inner, kind)
        tail = Scope(inner)
        unguarded: list[str] = []
        joined: list[tuple[str, str, str]] = []
        for v in found:
            name = self.printer.name("acc")
            ctype = CTYPES[v.dtype]
            acc_type = accumulator(v) if self.reduced_count() > 16384 or accumulator(v) != "double" else ctype
            start = start_of(v.kind, v.dtype)
            scope.lines.append(f"{acc_type} {name} = {start};")
            guard = " && ".join(self.printer.emit(g, tail) for g in self.guards_of(v))
            block = Scope(tail)
            line = self.step(v, name, acc_type, scope, block)
            lines = [*block.lines, line]
            tail.lines += [f"if ({guard}) {{", *indent(lines), "}"] if guard else lines
            unguarded += lines
            if not guard:
                tail.known |= block.known
            if kind == "row" or not self.solo():
                joined.append((name, f"{self.functor(v.kind)}()", f"{acc_type}({start})"))
            scope.known[v] = name if acc_type == ctype else f"{ctype}({name})"
        inside = "" if scanning or kind == "row" else self.whole_windows({g for v in found for g in self.guards_of(v)})
        if inside:
            scope.lines += [
                f"if ({inside}) {{",
                *indent(around(self.nest.reduced, [*inner.lines, *unguarded], unroll=True)),
                "} else {",
                *indent(self.pass_loop(inner.lines, tail.lines, kind, active, scanning)),
                "}",
            ]
        else:
            scope.lines += self.pass_loop(inner.lines, tail.lines, kind, active, scanning)
        self.early = None  # a pass that stores loads as it goes
        self.ends = level == self.top and not self.inner_stores()
        scope.lines += self.join(joined, kind) if joined else []

    def functor(self, kind: Kind) -> str:
        """Return by which functor threads join what they have of such a reduction, as C."""
        near = kind is Kind.MAXSUM and self.printer.form is Form.CUDA_NEAR
        return C[kind].functor + "Near" * near

    def loads_ahead(self, found: list[ir.Reduce], kind: str) -> bool:
        """Return whether a pass loads several elements before it uses the first: one that looks for the index of an
        extreme, and computes no place of what it reads.
        """
        if not any(v.kind in {Kind.MAXPLACE, Kind.MINPLACE} for v in found) or (kind == "column" and self.solo()):
            return False
        values = list(ir.walk(*(v.arg for v in found), enter=lambda v: not isinstance(v, ir.Reduce)))
        loads = [v for v in values if isinstance(v, ir.Load) and v.dtype == "float32" and self.is_inner(v)]
        scanned = kind == "row" and any(isinstance(v, ir.Scan) for v in values)
        return bool(loads) and not scanned and not any(self.nest.accesses[v].values for v in loads)

    def guards_of(self, value: ir.Reduce) -> tuple[ir.Index, ...]:
        """Return the conditions under which an element takes part, as far as a thread looks at them."""
        return value.guards

    def whole_windows(self, guards: set[ir.Index]) -> str:
        """Return the C condition that windows lie inside: a thread then adds them up without a look at each element.

        It is none where a team shares a column, or where there are no short windows.
        """
        nest, windows = self.nest, {leaf for loop in self.nest.reduced for leaf in loop.leaves}
        short = all(leaf.window for leaf in windows) and self.reduced_count() <= MOST_TAPS
        if not guards or not short or not self.solo() or any(g.every > 1 for g in guards):
            return ""
        conditions: dict[str, None] = {}
        for g in sorted(guards, key=lambda g: nest.position(g.form)):
            assert g.limit is not None
            taps = [(atom, n) for atom, n in g.form.terms if windows & set(atom.leaves())]
            if any(len(atom.leaves()) > 1 for atom, _ in taps):
                return ""
            rest = nest.position(ir.Form(tuple(t for t in g.form.terms if t not in taps), g.form.offset, g.form.sizes))
            ends = [(n, f"{abs(n)} * ({nest.names[atom.leaves()[0]]} - 1)") for atom, n in taps]
            below = "".join(f" - {end}" for n, end in ends if n < 0)
            above = "".join(f" + {end}" for n, end in ends if n > 0)
            conditions[f"{rest}{below} >= 0"] = None
            conditions[f"{rest}{above} < {nest.names.product(g.limit)}"] = None
        return " && ".join(conditions)

    def step(self, value: ir.Reduce, name: str, acc_type: str, scope: Scope, block: Scope) -> str:
        """Return the statement that takes one more element.

        What it needs goes to the block, declarations to the scope.
        """
        text = C[value.kind]
        form = text.step_of_floats if acc_type == "float" else ""
        return (form or text.step).format(a=self.added_to(name, value, acc_type), v=self.printer.emit(value.arg, block))

    def join(self, found: list[tuple[str, str, str]], kind: str) -> list[str]:
        """Return statements that join the partial results of a team's threads.

        `found` has the variable, functor and start of each reduction. Those of a row that are joined alike meet at the
        same barriers.
        """
        alike: dict[tuple[str, str], list[str]] = {}
        for name, functor, start in found:
            alike.setdefault((functor, start), []).append(name)
        lines = list[str]()
        for (functor, start), names in alike.items():
            if kind == "row" and len(names) > 1:
                lines.append(f"row_reduce_each({functor}, {start}, {', '.join(names)});")
            else:
                first = ", true" if kind == "row" and self.ends else ""  # one thread goes on
                lines += [f"{name} = {kind}_reduce({name}, {functor}, {start}{first});" for name in names]
        return lines

    def scans(self, roots: list[ir.Value], scope: Scope, inner: Scope, kind: str) -> bool:
        """Add running totals to a pass, and return whether there are any.

        Of a row each thread runs over a few neighbours, and the block scans what these come to; a column's thread
        simply runs.
        """
        found = [v for v in ir.walk(*roots, enter=lambda v: not isinstance(v, ir.Reduce)) if isinstance(v, ir.Scan)]
        for v in found:
            name, acc_type = self.printer.name("s"), accumulator(v)
            scope.lines.append(f"{acc_type} {name} = {start_of(v.kind, v.dtype)};")
            block = Scope(inner)
            text = self.printer.emit(v.arg, block)
            if kind == "column":
                inner.lines += [*block.lines, C[v.kind].step.format(a=name, v=text)]
                inner.known[v] = self.printer.assign(v, f"{CTYPES[v.dtype]}({name})", inner)
                continue
            functor, start = f"{C[v.kind].functor}()", f"{acc_type}({start_of(v.kind, v.dtype)})"
            step = f"{name}_last = {functor}({name}_last, {acc_type}({text}));"
            self.before += [
                f"{acc_type} {name}_q[{SCANNED}] = {{}}, {name}_last = {start}, {name}_total;",
                *self.each_scanned([*block.lines, step, f"{name}_q[u] = {name}_last;"]),
                f"{acc_type} {name}_base = row_scan({name}_last, {functor}, {start}, {name}_total);",
                f"{name}_base = {functor}({name}, {name}_base);",
                f"{name} = {functor}({name}, {name}_total);",
            ]
            inner.known[v] = f"{CTYPES[v.dtype]}({functor}({name}_base, {name}_q[u]))"
        if kind == "row":
            self.exchange_scans(found, inner)
        return bool(found)

    def exchange_scans(self, found: list[ir.Scan], inner: Scope) -> None:
        """Let a warp's lanes exchange what they have of a scan, so that they store side by side."""
        size = sum(8 if v.dtype in {"float64", "int64"} else 4 for v in found)
        self.striped = self.storing and 0 < size <= EXCHANGED_BYTES
        for v in found if self.striped else []:
            name, ctype = self.printer.name("handed"), CTYPES[v.dtype]
            each, rows = SCANNED * self.scan_threads(SCANNED), self.scanned_rows()
            row = f"{each} * threadIdx.y + " if rows > 1 else ""
            here = f"{name}[{row}{SCANNED} * threadIdx.x + u]"
            self.before += [
                f"__shared__ {ctype} {name}[{each * rows}];",
                "#pragma unroll",
                f"for (int u = 0; u < {SCANNED}; ++u) {here} = {inner.known[v]};",
                "__syncwarp();",
            ]
            inner.known[v] = f"{name}[{row}{STRIPED}]"

    def each_scanned(self, lines: list[str], place: str = f"{SCANNED} * int64_t(threadIdx.x) + u") -> list[str]:
        """Return the lines for each of the neighbours that a thread takes of a stretch that is scanned."""
        total = self.total(self.nest.reduced)
        head = [f"const int64_t k = k0 + {place};", f"if (k < {total}) {{"]
        inside = indent([*self.indices(self.nest.reduced, "k"), *lines])
        return ["#pragma unroll", f"for (int u = 0; u < {SCANNED}; ++u) {{", *indent([*head, *inside, "}"]), "}"]

    def scan_pass(self, body: list[str], tail: list[str]) -> list[str]:
        """Return the loop over a row in stretches, each scanned by the whole block."""
        before, self.before = self.before, []
        tail = [*body, *tail]
        rest = [*self.each_scanned(tail, STRIPED), "__syncwarp();"] if self.striped else self.each_scanned(tail)
        lines = [*before, *rest]
        return [
            f"for (int64_t k0 = 0; k0 < {self.total(self.nest.reduced)}; k0 += {SCANNED} * blockDim.x) {{",
            *indent(lines),
            "}",
        ]

    def pass_loop(self, body: list[str], tail: list[str], kind: str, active: str, scanning: bool) -> list[str]:
        """Return the team's loop over the reduced loops, flattened; with a scan it advances in step."""
        axis = "x" if kind == "row" else "y"
        total = self.total(self.nest.reduced)
        if kind == "column" and self.walks_columns() and not self.known_loads:
            return thread_loops.walked(self.nest.reduced, [*body, *tail], self.together())
        if kind == "column" and self.solo():
            return around(self.nest.reduced, [*body, *tail], unroll=self.is_unrolled())
        if scanning and kind == "row":
            return self.scan_pass(body, tail)
        indices = self.indices(self.nest.reduced, "k")
        limit = total if active == "true" else f"(active ? {total} : 0)"
        if self.early:
            return thread_loops.ahead(limit, axis, indices, self.early, [*body, *tail])
        return self.walk(limit, axis, [*indices, *body, *tail])

    def walk(self, count: str, axis: str, lines: list[str]) -> list[str]:
        """Return a team's loop over so many elements."""
        return (thread_loops.stepped if self.storing else thread_loops.counted)(count, axis, lines)


def count_of(loops: list[Loop]) -> int:
    """Return the number of elements of these loops for this problem."""
    return math.prod(loop.count for loop in loops)
