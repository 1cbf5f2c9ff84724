"""CUDA for windows (pools, depthwise convolutions): a thread takes neighbouring ones, and reads what they share once.

Comes in: a column region whose columns are short windows that slide along the innermost loop. Goes out: a second kernel
for it, and the C condition under which it may run. What the windows of a thread read of a row of memory is brought by a
few aligned vectors into registers, where each window finds its elements at places that the compiler knows; the results
are stored together. Vectors outside of a tensor are not loaded: windows leave out what lies there.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rag_kernels.offline.codegen.c_types import stored_type
from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Access, Loop, Poly, plus, text_of
from rag_kernels.offline.codegen.reduction_levels import around, indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.neighbours import neighbours, others, value_of
from rag_kernels.offline.cuda.elements.vectors import NARROW_TYPES
from rag_kernels.offline.cuda.reduce_loops import MOST_TAPS, ReduceLoops
from rag_kernels.offline.cuda.region import CudaParameters, CudaRegion
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.parameters import c_name
from rag_kernels.offline.ir.patterns import operands, strip
from rag_kernels.offline.ir.reductions import Kind

WIDTHS = (8, 4, 2)  # windows of a thread
VECTOR_BYTES = (16, 8)  # of a load: less where a thread could not keep what its windows read
LONG = 128  # times a thread's windows: of shorter rows most warps have windows at an edge, and would go both ways
FILLING = {Kind.MAX: "-INFINITY", Kind.MIN: "INFINITY", Kind.SUM: "0.0f"}  # which leaves a reduction as it is
MOST_BYTES = 256  # that a thread keeps of a tensor


@dataclass(frozen=True, slots=True)
class Span:
    """What a thread's windows read of one tensor: `count` vectors of `width` elements from each of `rows`.

    `first` is the number of the first vector, counted from the first window's own place.
    """

    name: str
    value: ir.Load
    step: int  # from one window to the next
    rest: Poly  # of the offset, without the place in a row
    width: int
    first: int
    count: int
    rows: tuple[Loop, ...]  # reduced loops that lead to other rows

    def vector(self, number: str) -> str:
        """Return the vector of this number in its row, as C."""
        row = ""
        for loop in self.rows:
            row = f"({row}) * {loop.size} + {loop.var}" if row else loop.var
        place = f"({row})" if " " in row else row
        return f"{self.name}[{place} * {self.count} + {number}]" if row else f"{self.name}[{number}]"

    def element(self, place: str, rows: tuple[Loop, ...]) -> str:
        """Return the element at a place, counted from the first of its row's vectors, as C."""
        return f"{replace(self, rows=rows).vector(f'({place}) / {self.width}')}.x[({place}) % {self.width}]"


@dataclass(slots=True)
class WindowLanes(CudaRegion):
    """Prints a kernel whose threads take `width` windows each."""

    width: int = 1
    bytes: int = 16  # of a vector
    spans: dict[str, Span] = field(default_factory=dict)  # by the text of the load
    reads: list[str] = field(default_factory=list)  # statements that load them
    checks: dict[str, None] = field(default_factory=dict)  # of sizes, as C
    filled: dict[ir.Value, str] = field(default_factory=dict)  # reductions that need no look at what lies outside
    fillings: dict[str, str] = field(default_factory=dict)  # by the text of the load: what stands there in its place
    factors: dict[ir.Value, ir.Value] = field(default_factory=dict)  # of sums: by what they multiply such a load

    def find(self, vector_bytes: int) -> bool:
        """Record what is read by vectors of so many bytes, and return whether windows of the lane read anything so."""
        nest, lane = self.nest, self.nest.lane
        if nest.schedule != "column" or lane is None or len(lane.leaves) != 1 or self.has_scan() or self.inner_stores():
            return False
        reduced = [leaf for loop in nest.reduced for leaf in loop.leaves]
        plain = all(leaf.window and nest.names[leaf] in self.constants for leaf in reduced)
        if not plain or len(reduced) != len(nest.reduced) or self.reduced_count() > MOST_TAPS:
            return False
        self.bytes, self.width = vector_bytes, self.width_of(lane, vector_bytes)
        stored = all(self.printer.storage[b] in ITEMSIZE for b in nest.stores)
        if self.width < 2 or not self.stores_fit() or not stored or len(self.stores) > len(nest.region.written):
            return False
        for v in ir.walk(*self.values):
            if isinstance(v, ir.Index) and v.limit is not None and v.every > 1:
                return False
            if isinstance(v, ir.Load) and v.storage in ITEMSIZE.keys() - {"bool"} and v.dtype != "bool":
                self.take(v, nest.accesses[v])
        self.find_filled()
        for text, span in self.spans.items():
            self.reads += self.reading(span, self.fillings.get(text, ""))
        self.check_stores()
        return any(self.slides(v) for v in nest.accesses)

    def stores_fit(self) -> bool:
        """Return whether what a thread makes lies together."""
        nest, lane = self.nest, self.nest.lane
        return lane is not None and all(neighbours(a, lane, nest, max(self.width, 1)) for a in nest.stores.values())

    def check_stores(self) -> None:
        """Record what the stores ask of sizes."""
        for access in self.nest.stores.values():
            self.check(access, access.constant, self.width, [])

    def width_of(self, lane: Loop, vector_bytes: int) -> int:
        """Return how many windows a thread takes: as many as step over a vector, of what slides and is stored."""
        steps = [a.stride(lane.leaves[0]) * ITEMSIZE.get(v.storage, 8) for v, a in self.nest.accesses.items()]
        stored = [ITEMSIZE.get(self.printer.storage[b], 8) for b in self.nest.stores]
        most = vector_bytes / max([*steps, *stored])
        return next((w for w in WIDTHS if w <= max(2, most) and lane.count % w == 0), 1)

    def slides(self, value: ir.Load) -> bool:
        """Return whether this load is taken from vectors that windows share."""
        lane, text = self.nest.lane, self.text_of(value)
        return text in self.spans and any(leaf.window for leaf in self.leaves_along(value)) and lane is not None

    def text_of(self, value: ir.Load) -> str:
        """Return the scalar load as C."""
        return f"{self.printer.pointers[value.buffer]}[{self.nest.offset(self.nest.accesses[value])}]"

    @staticmethod
    def leaves_along(value: ir.Load) -> list[ir.Atom]:
        """Return the loops that run along the innermost dimension of what is loaded."""
        last = value.index[-1] if value.index else None
        return [leaf for atom, _ in last.terms for leaf in atom.leaves()] if isinstance(last, ir.Form) else []

    def take(self, value: ir.Load, access: Access) -> None:
        """Record a load if vectors serve it."""
        nest, lane = self.nest, self.nest.lane
        assert lane
        last, text = value.index[-1] if value.index else None, self.text_of(value)
        if text in self.spans or access.values or not isinstance(last, ir.Form) or last.sizes:
            return
        along = self.leaves_along(value)
        elsewhere = [ir.leaves(a for a, _ in f.terms) for f in value.index[:-1] if isinstance(f, ir.Form)]
        taps = [loop for loop in nest.reduced if loop.leaves[0] in along]
        known = {lane.leaves[0], *(loop.leaves[0] for loop in taps)}
        if lane.leaves[0] not in along or set(along) != known or any(known & set(leaves) for leaves in elsewhere):
            return
        steps = [access.steps[loop.leaves[0]] for loop in [lane, *taps]]
        if any(set(step) != {()} or step[()] < 1 for step in steps):
            return
        step = steps[0][()]
        reach = sum(s[()] * (loop.count - 1) for s, loop in zip(steps[1:], taps, strict=True))
        rows = tuple(x for x in nest.reduced if x not in taps and access.stride(x.leaves[0]))
        rest = plus(access.constant, {(): -last.offset})
        width = self.vector_width(value, access, rest, step)
        first = last.offset // width if width else 0
        count = (last.offset + reach + step * (self.width - 1)) // width - first + 1 if width else 0
        kept = count * width * ITEMSIZE[value.storage]
        read = tuple(self.read_along(loop, value) for loop in rows)
        for loop in read:
            kept *= loop.count
        if not width or kept > self.most_bytes:
            return
        name = f"{c_name(value.buffer)}_v{len(self.spans) or ''}"
        span = Span(name, value, step, rest, width, first, count, read)
        self.spans[text] = span
        terms = ["u" if step == 1 else f"u * {step}", *nest.terms(access, taps)]
        start = last.offset - first * width
        within = tuple(self.seen_along(loop, value) for loop in rows)
        element = span.element(" + ".join([*terms, *([str(start)] if start else [])]), within)
        narrow = stored_type(value.storage, "cuda") in NARROW_TYPES
        self.known_loads[text] = f"float({element})" if narrow else element
        self.check(access, rest, width, [*ir.leaves(value.stored[-1])])

    @property
    def most_bytes(self) -> int:
        """Return how many bytes of a tensor a thread keeps at most."""
        return MOST_BYTES

    def read_along(self, loop: Loop, value: ir.Load) -> Loop:
        """Return the loop over the rows that are read where a reduced loop leads from row to row."""
        return loop

    def seen_along(self, loop: Loop, value: ir.Load) -> Loop:
        """Return the loop, by whose variable a window finds its row among those."""
        return loop

    def vector_width(self, value: ir.Load, access: Access, rest: Poly, step: int) -> int:
        """Return how many elements each vector has, or 0 where not even two lie together."""
        assert self.nest.lane
        size = ITEMSIZE[value.storage]
        loops = others(self.nest.lane, self.nest)
        apart = [access.stride(x.leaves[-1]) for x in loops if x.leaves[-1] not in self.leaves_along(value)]
        places = [*apart, value_of(rest, self.nest), ir.size_of(value.stored[-1]), step * self.width]
        return next((w for w in WIDTHS if w * size <= self.bytes and not any(n % w for n in places)), 0)

    def check(self, access: Access, rest: Poly, width: int, row: list[ir.Atom]) -> None:
        """Record what vectors of this width ask of sizes: those of rows, and of what lies between them."""
        assert self.nest.lane
        names = {self.nest.names[leaf] for leaf in row}
        if row:
            self.checks[f"({' * '.join(self.nest.names[leaf] for leaf in row)}) % {width} == 0"] = None
        else:
            self.checks[f"({self.nest.lane.size}) % {width} == 0"] = None
        steps = [access.steps.get(loop.leaves[-1], {}) for loop in others(self.nest.lane, self.nest)]
        for step in [*steps, rest]:
            if any(step) and not all(names and names <= set(mono) for mono in step):
                self.checks[f"({text_of(step)}) % {width} == 0"] = None

    def find_filled(self) -> None:
        """Record the reductions which take no notice of what stands in for elements outside: of loads alone, and sums
        of these times what is finite and the same for all of a thread's windows.
        """
        guarded = [v for v in ir.walk(*self.values) if isinstance(v, ir.Reduce) and v.guards]
        read = {r: [self.text_of(v) for v in ir.walk(r.arg) if isinstance(v, ir.Load)] for r in guarded}
        for r in guarded:
            load, factor = self.slid(r)
            text = self.text_of(load) if isinstance(load, ir.Load) else ""
            alone = not any(text in read[other] for other in guarded if other is not r)
            plain = r.dtype == "float32" and r.kind in FILLING and text in self.spans and alone
            if plain and isinstance(load, ir.Load) and all(self.is_place_of(load, g) for g in r.guards):
                self.fillings[text] = FILLING[r.kind]
                if factor is None:
                    self.filled[r] = FILLING[r.kind]
                else:
                    self.factors[r] = factor

    def slid(self, value: ir.Reduce) -> tuple[ir.Value, ir.Value | None]:
        """Return what a reduction reads of its windows, and of a sum by what it multiplies that, if by anything."""
        assert self.nest.lane
        found = operands(strip(value.arg), Operator.MUL) if value.kind is Kind.SUM else None
        for load, factor in ((found[0], found[1]), (found[1], found[0])) if found else ():
            if not ir.tree_atoms(factor) & set(self.nest.lane.leaves) and isinstance(strip(load), ir.Load):
                return strip(load), factor
        return strip(value.arg), None

    @staticmethod
    def is_place_of(load: ir.Load, guard: ir.Index) -> bool:
        """Return whether a guard says that the load's place along one of its dimensions lies in the tensor."""
        assert guard.limit is not None
        return any(
            isinstance(form, ir.Form)
            and (dict(form.terms), form.offset, form.sizes)
            == (dict(guard.form.terms), guard.form.offset, guard.form.sizes)
            and ir.leaves(group) == ir.leaves(guard.limit)
            for form, group in zip(load.index, load.stored, strict=True)
        )

    def guards_of(self, value: ir.Reduce) -> tuple[ir.Index, ...]:
        return () if value in self.filled else value.guards

    def reading(self, span: Span, filling: str) -> list[str]:
        """Return the statements that load a thread's vectors of a tensor."""
        nest, lane, value = self.nest, self.nest.lane, span.value
        assert lane
        kind = f"Pack<{stored_type(value.storage, 'cuda')}, {span.width}>"
        total = " * ".join([str(span.count), *(loop.size for loop in span.rows)])
        at = f"{self.width * span.step} * {lane.var}_q + {span.width} * (i + {span.first})"
        terms = [
            self.printer.pointers[value.buffer],
            *nest.terms(nest.accesses[value], [*nest.outer, *span.rows]),
            *([text_of(span.rest)] if span.rest else []),
        ]
        inside = [f"uint64_t(at) < uint64_t({nest.names.product(value.stored[-1])})"]
        for form, group in zip(value.index[:-1], value.stored, strict=False):
            if isinstance(form, ir.Form) and (form.offset or form.sizes or [n for _, n in form.terms] not in ([], [1])):
                inside.append(f"uint64_t({nest.position(form)}) < uint64_t({nest.names.product(group)})")
        load = [f"{span.vector('i')} = *reinterpret_cast<const {kind}*>({' + '.join([*terms, 'at'])});"]
        if self.guarded:
            load = [f"if ({' && '.join(inside)}) {load[0]}"]
            fill = f"{span.vector('i')}.x[e] = {filling};"
            load += (
                ["else {", "  #pragma unroll", f"  for (int e = 0; e < {span.width}; ++e) {fill}", "}"]
                if filling
                else []
            )
        each = [
            "#pragma unroll",
            f"for (int i = 0; i < {span.count}; ++i) {{",
            f"  const int64_t at = {at};",
            *indent(load),
            "}",
        ]
        return [f"{kind} {span.name}[{total}];", *around(list(span.rows), each, unroll=True)]

    @property
    def guarded(self) -> bool:
        """Return whether windows may reach over the edges of a tensor."""
        return any(isinstance(v, ir.Reduce) and v.guards for v in ir.walk(*self.values))

    @property
    def quad(self) -> Loop:
        """Return the loop over a thread's windows together."""
        assert self.nest.lane
        lane = self.nest.lane
        return Loop(lane.leaves, f"{lane.var}_q", f"({lane.size} / {self.width})", lane.count // self.width)

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        return " && ".join([*self.checks, self.aligned([*self.stores, *(s.value.buffer for s in self.spans.values())])])

    def begin(self, scope: Scope) -> None:
        scope.known.update(self.known_loads)

    def vector(self, buffer: str) -> str:
        """Return the name of what a thread stores in a buffer."""
        return f"{c_name(buffer)}_v"

    def store(self, buffer: str, scope: Scope) -> list[str]:
        return [f"{self.vector(buffer)}.x[u] = {self.printer.emit_stored(buffer, self.stores[buffer], scope)};"]

    def whole_windows(self, guards: set[ir.Index]) -> str:
        assert self.nest.lane
        guarded = [v for v in ir.walk(*self.values) if isinstance(v, ir.Reduce) and self.guards_of(v)]
        if guarded and all(v in self.factors for v in guarded):
            return self.finite([self.factors[v] for v in guarded])
        long = self.nest.lane.count >= LONG * self.width
        inside = ReduceLoops.whole_windows(self, guards) if long else ""
        if not inside:
            return ""
        name, var = self.printer.name("whole"), self.nest.lane.var
        first = f"{self.width} * {self.quad.var}"
        self.reads += [
            f"const auto {name}_at = [&](int64_t {var}) {{ return {inside}; }};",
            f"const bool {name} = {name}_at({first}) && {name}_at({first} + {self.width - 1});",
        ]
        return name

    def finite(self, factors: list[ir.Value]) -> str:
        """Return the C condition that these are finite in all places of a window: times zero they are zero then."""
        scope, name = Scope(), self.printer.name("whole")
        texts = [self.printer.emit(factor, scope) for factor in dict.fromkeys(factors)]
        added = [f"{name}_off += {text} * 0.0f;" for text in texts]
        self.reads += [
            f"float {name}_off = 0;",
            *around(self.nest.reduced, [*scope.lines, *added], unroll=True),
            f"const bool {name} = {name}_off == 0.0f;",
        ]
        return name

    def column(self) -> list[str]:
        """Return the windows of a thread one after the other, unrolled, and their results stored together."""
        assert self.nest.lane
        nest, lane, loops = self.nest, self.nest.lane, [*self.nest.outer, self.quad]
        types = {b: f"Pack<{stored_type(self.printer.storage[b], 'cuda')}, {self.width}>" for b in self.stores}
        puts = [
            f"*reinterpret_cast<{types[b]}*>(&{self.printer.pointers[b]}[{nest.offset(nest.stores[b])}]) = "
            f"{self.vector(b)};"
            for b in self.stores
        ]
        each = self.passes("column", "true", "true")
        return [
            "const int64_t t = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;",
            f"if (t >= {self.total(loops)}) return;",
            *self.indices(loops, "t"),
            *self.reads,
            *(f"{types[b]} {self.vector(b)};" for b in self.stores),
            "#pragma unroll",
            f"for (int u = 0; u < {self.width}; ++u) {{",
            f"  const int64_t {lane.var} = {self.width} * {self.quad.var} + u;",
            *indent(each),
            "}",
            f"const int64_t {lane.var} = {self.width} * {self.quad.var};",
            *puts,
        ]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        return self.one_thread_each([*self.nest.outer, self.quad], name, arguments)


def window_lanes(region: Region, function: Function, sizes: Sizes, parameters: CudaParameters) -> WindowLanes | None:
    """Return the kernel that takes neighbouring windows together, if the region is windows of its lane."""
    for vector_bytes in VECTOR_BYTES if parameters.vector > 1 else ():
        found = WindowLanes.of(region, function, sizes, parameters)
        if found.find(vector_bytes):
            return found
    return None
