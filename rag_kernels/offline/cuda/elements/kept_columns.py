"""CUDA for short columns that several passes go over (a layer norm over channels): they are read once and kept.

Comes in: a column region of more than one pass whose columns are short enough for a few threads' registers. Goes out:
a second kernel in which each thread loads vectors of neighbouring columns, keeps them through all passes, and stores
vectors; and the C condition under which it may run. What columns come to has an array with a number for each column of
a thread, so that it goes over its elements once a pass and stores a vector as soon as it is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_kernels.offline.codegen.c_types import CTYPES, stored_type
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Access, Loop, text_of
from rag_kernels.offline.codegen.reduction_levels import accumulator, indent
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.neighbours import neighbours, others
from rag_kernels.offline.cuda.elements.vectors import Vector
from rag_kernels.offline.cuda.reduce_loops import count_of
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.parameters import c_name

TEAM = 8  # lanes of a warp that share columns: what they join they exchange without a barrier
WIDTHS = (4, 2)  # columns of a thread
VECTOR_BYTES = 8  # of a load: a warp takes 32 bytes of each of eight rows
MOST_BYTES = 384  # that a thread keeps
QUADS = 16  # vectors of columns that a block has: smaller blocks fill a device more evenly (24.4 us with 32, 21.4)
FULL = 200  # blocks that keep a device busy


@dataclass(slots=True)
class KeptColumns(CudaRegion):
    """Prints a kernel whose threads have `items` elements of `width` columns each."""

    width: int = 1
    items: int = 0
    kept_loads: dict[str, tuple[str, ir.Load]] = field(default_factory=dict)  # by the text of the load: name
    targets: dict[str, str] = field(default_factory=dict)  # buffer -> name

    def find(self) -> bool:
        """Record what is kept, and return whether the region is several passes over columns that can be."""
        nest, lane = self.nest, self.nest.lane
        inner = self.inner_stores()
        if nest.schedule != "column" or lane is None or self.has_scan() or self.solo() or not inner:
            return False
        guarded = any(isinstance(v, ir.Reduce) and v.guards for v in ir.walk(*self.values))
        loads = [v for v in nest.accesses if v.storage in ITEMSIZE.keys() - {"bool"} and v.dtype != "bool"]
        steps = [v for v in loads if self.is_inner(v) and nest.accesses[v].steps.get(lane.leaves[-1]) == {(): 1}]
        if guarded or not steps:
            return False
        narrow = min(ITEMSIZE[v.storage] for v in steps)
        self.width = next((w for w in WIDTHS if w * narrow <= VECTOR_BYTES and lane.count % w == 0), 1)
        self.items = self.items_of()
        blocks = count_of(nest.outer) * -(-lane.count // (QUADS * self.width))
        if self.width == 1 or blocks < FULL:
            return False
        for v in steps:
            text = f"{self.printer.pointers[v.buffer]}[{nest.offset(nest.accesses[v])}]"
            if (
                text not in self.kept_loads
                and not nest.accesses[v].values
                and neighbours(nest.accesses[v], lane, nest, self.width)
            ):
                name = f"{c_name(v.buffer)}_v{len(self.kept_loads) or ''}"
                self.kept_loads[text] = name, v
                vector = Vector(name, v.buffer, stored_type(v.storage, "cuda"), self.width)
                self.known_loads[text] = vector.element("u", f"{name}[j]")
        self.find_targets(inner)
        whole = self.targets.keys() == inner.keys() and bool(self.kept_loads)
        return whole and self.items * self.width * sum(self.kept_sizes()) <= MOST_BYTES

    def find_targets(self, inner: dict[str, ir.Value]) -> None:
        """Record what is stored in vectors."""
        nest, lane = self.nest, self.nest.lane
        assert lane
        for number, buffer in enumerate(inner):
            access = nest.stores[buffer]
            if self.printer.storage[buffer] in ITEMSIZE and neighbours(access, lane, nest, self.width):
                self.targets[buffer] = f"{c_name(buffer)}_v{len(self.kept_loads) + number}"

    def kept_sizes(self) -> list[int]:
        """Return the bytes of an element of each tensor that a thread has a place for."""
        kept = [ITEMSIZE[v.storage] for _, v in self.kept_loads.values()]
        return kept + [ITEMSIZE[self.printer.storage[b]] for b in self.targets]

    def items_of(self) -> int:
        """Return how many elements of a column each of its threads has."""
        return -(-self.reduced_count() // TEAM)

    @property
    def item_place(self) -> str:
        """Return which element of its column number `j` of a thread is, as C."""
        return f"part + {TEAM} * j"

    @property
    def quad(self) -> Loop:
        """Return the loop over a thread's columns together."""
        assert self.nest.lane
        lane = self.nest.lane
        return Loop(lane.leaves, f"{lane.var}_q", f"({lane.size} / {self.width})", lane.count // self.width)

    @property
    def blocks(self) -> str:
        """Return how many blocks share the columns, as C."""
        return f"({self.quad.size} + {QUADS - 1}) / {QUADS}"

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        assert self.nest.lane
        accesses = [(v.buffer, self.nest.accesses[v]) for _, v in self.kept_loads.values()]
        accesses += [(b, self.nest.stores[b]) for b in self.targets]
        checks = {f"({self.nest.lane.size}) % {self.width} == 0": None}
        for _, access in accesses:
            checks |= dict.fromkeys(self.steps_of(access))
        short = f"{self.total(self.nest.reduced)} <= {self.items * TEAM}"
        return " && ".join([short, *checks, self.aligned(b for b, _ in accesses)])

    def steps_of(self, access: Access) -> list[str]:
        """Return what vectors ask of the steps between them, but for those that hold whole lanes."""
        assert self.nest.lane
        lane = {self.nest.names[leaf] for leaf in self.nest.lane.leaves}
        steps = [access.steps.get(loop.leaves[-1], {}) for loop in others(self.nest.lane, self.nest)]
        asked = [s for s in [*steps, access.constant] if any(s) and not all(lane <= set(names) for names in s)]
        return [f"({text_of(step)}) % {self.width} == 0" for step in asked]

    def loads_ahead(self, found: list[ir.Reduce], kind: str) -> bool:
        return False  # all is in registers

    def store(self, buffer: str, scope: Scope) -> list[str]:
        if buffer not in self.targets:
            return CudaRegion.store(self, buffer, scope)
        return [f"{self.targets[buffer]}.x[u] = {self.printer.emit_stored(buffer, self.stores[buffer], scope)};"]

    def added_to(self, name: str, value: ir.Reduce, acc_type: str) -> str:
        return f"{name}[u]"

    def settle(self, roots: list[ir.Value], scope: Scope) -> None:
        """Compute what a pass needs from before it, a number for each column."""
        block = Scope(scope)
        for value in self.frontier(roots):
            if scope.find(value) is None:
                name, text = self.printer.name("of_column"), self.printer.emit(value, block)
                scope.lines.append(f"{CTYPES[value.dtype]} {name}[{self.width}];")
                block.lines.append(f"{name}[u] = {text};")
                scope.known[value] = f"{name}[u]"
        scope.lines += self.each_column(block.lines)

    def reduce_pass(self, level: int, kind: str, active: str, scope: Scope) -> None:
        found = self.reductions(level)
        self.settle([v.arg for v in found], scope)
        inner, joined = self.open_inner(scope), list[str]()
        for value in found:
            name, ctype, wide = self.printer.name("acc"), CTYPES[value.dtype], accumulator(value)
            kept = ctype if wide == "double" else wide
            start = start_of(value.kind, value.dtype)
            scope.lines.append(f"{kept} {name}[{self.width}] = {{{', '.join([str(start)] * self.width)}}};")
            inner.lines.append(self.step(value, name, kept, scope, inner))
            joined += ["#pragma unroll", f"for (int u = 0; u < {self.width}; ++u)"]
            joined.append(f"  {name}[u] = of_lanes({name}[u], {C[value.kind].functor}(), {TEAM});")
            scope.known[value] = f"{name}[u]" if kept == ctype else f"{ctype}({name}[u])"
        scope.lines += [*self.each_item(self.each_column(inner.lines)), *joined]

    def passes(self, kind: str, active: str, first: str) -> list[str]:
        scope = Scope()
        for level in range(1, self.top + 1):
            self.reduce_pass(level, kind, active, scope)
        self.settle([self.stores[buffer] for buffer in self.targets], scope)
        inner = self.open_inner(scope)
        made = [line for buffer in self.targets for line in self.store(buffer, inner)]
        scope.lines += self.storing_pass([*inner.lines, *made])
        last = Scope(scope)
        rest = [line for buffer in self.stores if buffer not in self.targets for line in self.store(buffer, last)]
        each = self.each_column([*last.lines, *rest]) if rest else []
        return [*scope.lines, *([f"if ({first}) {{", *indent(each), "}"] if each else [])]

    def storing_pass(self, lines: list[str]) -> list[str]:
        """Return the pass that computes elements by these lines, and stores them."""
        vectors = [f"{self.vector_type(self.printer.storage[b])} {name};" for b, name in self.targets.items()]
        return self.each_item([*vectors, *self.each_column(lines), *map(self.put, self.targets)])

    def put(self, buffer: str) -> str:
        """Return the statement that stores a vector."""
        kind, place = self.vector_type(self.printer.storage[buffer]), self.nest.offset(self.nest.stores[buffer])
        return f"*reinterpret_cast<{kind}*>(&{self.printer.pointers[buffer]}[{place}]) = {self.targets[buffer]};"

    def each_column(self, lines: list[str]) -> list[str]:
        """Return the lines for each column of a thread."""
        assert self.nest.lane
        if not lines:
            return []
        place = f"const int64_t {self.nest.lane.var} = {self.width} * {self.quad.var} + u;"
        return [
            "#pragma unroll",
            f"for (int u = 0; u < {self.width}; ++u) {{",
            *indent([place, *lines]),
            "}",
        ]

    def each_item(self, lines: list[str]) -> list[str]:
        """Return the lines for each element of a column that a thread has."""
        inside = [*self.indices(self.nest.reduced, "k"), *lines]
        return [
            "#pragma unroll",
            f"for (int j = 0; j < {self.items}; ++j) {{",
            f"  const int64_t k = {self.item_place};",
            f"  if (active && k < {self.total(self.nest.reduced)}) {{",
            *indent(indent(inside)),
            "  }",
            "}",
        ]

    def vector_type(self, storage: str) -> str:
        """Return the C type of a vector."""
        return f"Pack<{stored_type(storage, 'cuda')}, {self.width}>"

    def column(self) -> list[str]:
        assert self.nest.lane
        nest, lane = self.nest, self.nest.lane
        reads, declared = [], []
        for text, (name, v) in self.kept_loads.items():
            kind = self.vector_type(v.storage)
            declared.append(f"{kind} {name}[{self.items}];")
            reads.append(f"{name}[j] = *reinterpret_cast<const {kind}*>(&{text});")
        return [
            f"const uint32_t tiles = uint32_t({self.blocks}), part = threadIdx.x % {TEAM};",
            f"const int64_t wanted = int64_t(blockIdx.x % tiles) * {QUADS} + threadIdx.x / {TEAM};",
            f"const bool active = wanted < {self.quad.size};",
            f"const int64_t {self.quad.var} = active ? wanted : 0;  // idle threads take part in exchanges only",
            *self.indices(nest.outer, "(blockIdx.x / tiles)"),
            *declared,
            f"const int64_t {lane.var} = {self.width} * {self.quad.var};",
            *self.each_item(reads),
            *self.passes("column", "active", "active && part == 0"),
        ]

    def block_threads(self) -> int:
        return QUADS * TEAM

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        grid = f"blocks(({self.total(self.nest.outer)}) * ({self.blocks}))"
        return [f"{name}<<<{grid}, {QUADS * TEAM}, 0, stream>>>({', '.join(arguments)});"]


def kept_columns(region: Region, function: Function, sizes: Sizes, parameters: CudaParameters) -> KeptColumns | None:
    """Return the kernel that keeps short columns, if the region goes over such more than once."""
    found = KeptColumns.of(region, function, sizes, parameters)
    return found if parameters.vector > 1 and found.find() else None
