"""CUDA that takes neighbouring elements together: sixteen bytes a load, and rows that stay in registers.

Comes in: a region whose innermost loop is a multiple of four here, or of eight where elements have two bytes. Goes out:
a second kernel for it beside the scalar one of `region.py`, and the C condition under which it may run (sizes and
addresses, known at the call). A row of at most ITEMS vectors a thread is read once and kept; a longer one is read once
for every level of reductions. Loads that do not lie side by side stay as they are.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from rag_kernels.offline.codegen.c_types import narrowed, stored_type
from rag_kernels.offline.codegen.loop_nest import Access, Loop, text_of
from rag_kernels.offline.codegen.operator_texts import Form
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.compared_places import compared_places
from rag_kernels.offline.cuda.elements.dear_values import dear_value
from rag_kernels.offline.cuda.elements.neighbours import others
from rag_kernels.offline.cuda.elements.vectors import FLOAT8_TYPES, HALF_TYPES, Vector
from rag_kernels.offline.cuda.region import CudaRegion
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import PAIR, Operator
from rag_kernels.offline.ir.parameters import c_name
from rag_kernels.offline.ir.patterns import operands
from rag_kernels.offline.ir.reductions import Kind

KEPT = 4  # quads of a row that a thread keeps at most; a warp that has a row to itself keeps twice as many
MOST_THREADS = 512  # of a row that is kept
WARP_QUADS = 256  # of a row that a warp has to itself at most
FEW_KEPT = 2  # tensors of a row that are kept: of more, those that all rows share are read again
KEPT_BYTES = 16 * KEPT * MOST_THREADS  # of a row at most


@dataclass(frozen=True, slots=True)
class Taken:
    """An array of a vector's elements, the one that leaves a reduction as it is, and the statement that takes them."""

    name: str
    start: str
    statement: str


@dataclass(slots=True)
class VectorizedRegion(CudaRegion):
    """Prints a kernel that takes vectors along `axis`; a `Pack` is named by what it was loaded from."""

    axis: Loop | None = None
    width: int = 4  # elements of a vector
    vectors: dict[str, Vector] = field(default_factory=dict)  # by name
    addresses: dict[str, str] = field(default_factory=dict)  # name -> address
    starts: dict[str, tuple[str, str]] = field(default_factory=dict)  # the same: of its row, and where in that
    numbered: set[str] = field(default_factory=set)  # names whose address is told by the number `t` of the thread
    shared: set[str] = field(default_factory=set)  # names of what all rows read alike
    strides: dict[str, None] = field(default_factory=dict)  # that must be multiples of four, as C
    loads: dict[str, str] = field(default_factory=dict)  # text of a scalar load -> name
    names: dict[ir.Load, str] = field(default_factory=dict)  # the same by the load, those at computed places too
    targets: dict[str, str] = field(default_factory=dict)  # buffer -> name
    partials: list[str] = field(default_factory=list)  # sums that take four floats before they become double
    held: tuple[str, ...] = ()  # what a thread keeps of a row through all passes
    read: set[str] = field(default_factory=set)  # vectors whose elements this pass has asked for
    made: set[str] = field(default_factory=set)  # those that it has made
    packs: bool = True  # whether floats of eight bits are converted a vector at a time
    gathers: bool = True  # whether rows at computed places may be taken so
    truths: bool = False  # whether truth values may be
    shortens: bool = False  # whether no other kernel takes parts of this text
    dear: tuple[ir.Op, str] | None = None  # what the last reductions compute and the stores use, and the array of it
    gathered: dict[ir.Load, str] = field(default_factory=dict)  # loads at computed places, which hold for a whole row
    followed: dict[ir.Load, str] = field(default_factory=dict)  # the same, which hold for a vector
    places: list[str] = field(default_factory=list)  # what computes these, before the vectors of this pass
    taken: list[Taken] = field(default_factory=list)  # what takes the elements of a vector together, in this pass
    finish: list[str] = field(default_factory=list)  # from what a thread has to what threads join

    @property
    def quad(self) -> Loop:
        """Return the loop over quads."""
        assert self.axis
        size = f"({self.axis.size} / {self.width})" if self.width > 1 else self.axis.size
        return Loop(self.axis.leaves, f"{self.axis.var}_q", size, self.axis.count // self.width)

    @property
    def first_element(self) -> str:
        """Return the index of the first element of a quad, as C."""
        return f"{self.width} * {self.quad.var}" if self.width > 1 else self.quad.var

    @property
    def element(self) -> str:
        """Return the index of element `u` of a quad, as C."""
        return f"{self.first_element} + u" if self.width > 1 else self.first_element

    def conditions(self) -> list[str]:
        """Return what must hold of sizes and addresses, as C."""
        assert self.axis
        if self.width == 1:
            return []
        sizes = [f"({size}) % {self.width} == 0" for size in dict.fromkeys([self.axis.size, *self.strides])]
        short = [f"{total} <= INT32_MAX" for total in dict.fromkeys(total for _, total in self.compared().values())]
        return [*sizes, *short, self.aligned(v.buffer for v in self.vectors.values())]

    def compared(self) -> dict[ir.Op, tuple[str, str]]:
        """Return how places are compared with numbers, and what that asks of sizes."""
        if not self.shortens or self.axis is None or self.has_scan() or self.width == 1:
            return {}
        return compared_places(self.values, self.axis, self.nest)

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        return " && ".join(self.conditions())

    def name_of(self, buffer: str, access: Access) -> str:
        """Return a new name for the quad at this address."""
        assert self.axis
        pointer = self.printer.pointers[buffer]
        name = f"{c_name(buffer)}_v{len(self.addresses) or ''}"
        self.vectors[name] = Vector(name, buffer, stored_type(self.printer.storage[buffer], "cuda"), self.width)
        nest, quads = self.nest, replace(self.axis, var=self.first_element)
        rows = nest.schedule == "row"
        loops = nest.reduced if rows else [*nest.reduced, self.axis]
        within = " + ".join(nest.terms(access, [quads if loop.var == self.axis.var else loop for loop in loops]))
        if rows and self.width > 1 and nest.is_dense(access, nest.reduced):
            within = f"{self.width} * k"
        constant = [text_of(access.constant)] if access.constant else []
        if (
            nest.schedule == "point"
            and not constant
            and not access.values
            and nest.is_dense(access, [*nest.outer, self.axis])
        ):
            self.addresses[name] = f"{pointer} + {self.width} * t"
            self.numbered.add(name)
            return name
        if any(access.constant):  # of sizes
            self.strides.setdefault(text_of(access.constant))
        row = [*nest.terms(access, nest.outer), *constant]
        if not row:
            self.shared.add(name)
        self.starts[name] = " + ".join([pointer, *row]), within
        self.addresses[name] = " + ".join(self.starts[name])
        inner = [self.nest.names[leaf] for leaf in self.axis.leaves]
        for _, step in access.values:
            if not all(set(inner) <= set(names) for names in step):
                self.strides.setdefault(text_of(step))
        for loop in others(self.axis, self.nest):
            step = access.steps.get(loop.leaves[-1], {})
            if not all(set(inner) <= set(names) for names in step):  # else it is a multiple of the axis
                self.strides.setdefault(text_of(step))
        return name

    def store(self, buffer: str, scope: Scope) -> list[str]:
        name = self.targets.get(buffer)
        if name is None:
            return CudaRegion.store(self, buffer, scope)
        return [self.put_element(name, self.printer.emit(self.stores[buffer], scope))]

    def is_packed(self, name: str) -> bool:
        """Return whether a vector's elements are floats while a thread has it, converted two at a time."""
        return self.packs and self.width > 1 and self.vectors[name].ctype in FLOAT8_TYPES

    def type_of(self, name: str) -> str:
        """Return the C type of a vector while a thread has it."""
        return f"Pack<float, {self.vectors[name].count}>" if self.is_packed(name) else self.vectors[name].type

    def put_element(self, name: str, text: str) -> str:
        """Return the statement that makes element `u` of a vector."""
        self.made.add(name)
        vector = self.vectors[name]
        stored = text if self.is_packed(name) else narrowed(text, self.printer.storage[vector.buffer])
        return f"{self.place_of(name)}.x[u] = {stored};"

    def place_of(self, name: str) -> str:
        """Return what has the vector of this name, as C."""
        return name

    def open_inner(self, scope: Scope) -> Scope:
        """Return the scope inside the loop over a quad's elements, where loads are its components."""
        inner = Scope(scope, taken=self.read)
        self.follow(scope)
        inner.vectors |= dict([*self.loads.items(), *self.gathered.items(), *self.followed.items()])
        inner.known |= {key: self.element_in(name) for key, name in inner.vectors.items()}
        inner.known |= {value: text for value, (text, _) in self.compared().items()}
        if self.storing and self.dear:
            value, name = self.dear
            again, kept = self.printer.emit(value, inner), self.printer.name()
            inner.lines.append(f"const float {kept} = ITEMS ? {name}[ITEMS ? j : 0][u] : {again};")
            inner.known[value] = kept
        return inner

    def begin(self, scope: Scope) -> None:
        """Compute the places of gathered rows, which the addresses of their vectors name."""
        for load, name in self.gathered.items():
            self.addresses[name] = self.place_in(load, self.addresses[name], scope)

    def load_early(self, scope: Scope) -> None:
        scope.lines += self.keep()
        CudaRegion.load_early(self, scope)

    def place_in(self, load: ir.Load, start: str, scope: Scope) -> str:
        """Return the address of a vector at a computed place, whose statements the scope takes."""
        places = self.nest.accesses[load].values
        return " + ".join([start, *(f"{self.printer.emit(i, scope)} * ({text_of(stride)})" for i, stride in places)])

    def follow(self, scope: Scope) -> None:
        """Compute the places of vectors that lie elsewhere in each step of a pass."""
        places = Scope(scope)
        for load, name in self.followed.items():
            start = " + ".join(part for part in self.starts[name] if part)
            self.addresses[name] = self.place_in(load, start, places)
        self.places = places.lines

    def element_in(self, name: str, place: str = "u") -> str:
        """Return an element of a vector as C, in the type in which arithmetic runs."""
        vector = self.vectors[name]
        if self.is_packed(name):
            return f"{name}.x[{place}]"
        in_turn = self.has_scan() or (self.held and self.reads_once() and self.count_of_quads() > WARP_QUADS)
        if in_turn:  # by words nvcc would load one vector after the other, each behind the work on the last
            return vector.converted(place, self.place_of(name))
        return vector.element(place, self.place_of(name))

    def loads_ahead(self, found: list[ir.Reduce], kind: str) -> bool:
        return False  # a vector is ahead enough

    def added_to(self, name: str, value: ir.Reduce, acc_type: str) -> str:
        if acc_type != "double" or value.kind is not Kind.SUM or value.dtype != "float32":
            return name
        self.partials.append(name)
        return f"{name}_f"

    def step(self, value: ir.Reduce, name: str, acc_type: str, scope: Scope, block: Scope) -> str:
        """Return the statement that takes one more element: those of a vector are taken together where that is less."""
        if not self.dear or self.level[value] != self.top or self.dear[0] not in ir.walk(value.arg):
            return self.one_step(value, name, acc_type, scope, block)
        made = self.printer.emit(self.dear[0], block)  # by a name of its own, also where one expression has it
        line = self.one_step(value, name, acc_type, scope, block)
        return f"{line} if (ITEMS) {self.dear[1]}[ITEMS ? j : 0][u] = {made};"

    def one_step(self, value: ir.Reduce, name: str, acc_type: str, scope: Scope, block: Scope) -> str:
        """Return the statement itself."""
        if self.nest.schedule != "row":
            return CudaRegion.step(self, value, name, acc_type, scope, block)
        if value.kind is Kind.MAXSUM and value.arg.dtype != PAIR:
            scope.lines.append(f"float {name}_top = -INFINITY, {name}_sum = 0;")
            self.finish.append(f"{name} = MaxSum{{{name}_top, {name}_sum}};")
            x, near = self.printer.name("x"), "_near" * (self.printer.form is Form.CUDA_NEAR)
            self.taken.append(Taken(x, "-INFINITY", f"take_below{near}({name}_top, {name}_sum, {x});"))
            return f"{x}[u] = {self.printer.emit(value.arg, block)};"
        placed = operands(value.arg, Operator.PLACED) if value.kind in {Kind.MAXPLACE, Kind.MINPLACE} else None
        if placed:
            x, inner = self.printer.name("x"), self.open_inner(scope)
            start = f"{'-' * (value.kind is Kind.MAXPLACE)}INFINITY"
            index = self.printer.emit(placed[1], inner)
            lines = " ".join(
                [f"const int64_t {self.axis_var} = {self.element};", *inner.lines, f"return uint32_t({index});"]
            )
            most = "true" if value.kind is Kind.MAXPLACE else "false"
            self.taken.append(Taken(x, start, f"take<{most}>({name}, {x}, [&](int u) {{ {lines} }});"))
            return f"{x}[u] = {self.printer.emit(placed[0], block)};"
        return CudaRegion.step(self, value, name, acc_type, scope, block)

    def join(self, found: list[tuple[str, str, str]], kind: str) -> list[str]:
        finish, self.finish = self.finish, []
        return [*finish, *CudaRegion.join(self, found, kind)]

    @property
    def axis_var(self) -> str:
        """Return the loop variable of the axis."""
        assert self.axis
        return self.axis.var

    def each(self, lines: list[str]) -> list[str]:
        """Return the lines for each element of a quad."""
        assert self.axis
        head = f"  const int64_t {self.axis.var} = {self.element};"
        return ["#pragma unroll", f"for (int u = 0; u < {self.width}; ++u) {{", head, *indent(lines), "}"]

    def quad_lines(self, lines: list[str], before: list[str] | None = None) -> list[str]:
        """Return statements that load what the lines use, run them for each element, and store.

        With `before`, which every thread of the block runs, the rest is for threads that have a quad.
        """
        used, made = self.in_order(self.read), [name for name in self.targets.values() if name in self.made]
        self.read.clear()
        self.made.clear()
        sums, self.partials = self.partials, []
        taken, self.taken = self.taken, []
        vectors, inside = self.vectors, "inside ? {0} : {1}{{}}" if before is not None else "{0}"
        rest = [
            *(f"{self.type_of(n)} {n};" for n in made),
            *(f"float {n}_f = 0;" for n in sums),
            *(line for t in taken for line in self.declared(t)),
            *self.each(lines),
            *(t.statement for t in taken),
            *(f"{n} += {n}_f;" for n in sums),
            *(self.put(n) for n in made),
        ]
        if before is not None:
            rest = [*before, "if (inside) {", *indent(rest), "}"]
        loads = {n: inside.format(self.loaded(n), vectors[n].type) for n in used}
        loads |= {n: f"floats_of({load})" for n, load in loads.items() if self.is_packed(n)}
        places, self.places = self.places if {*used} & {*self.followed.values()} else [], []
        return [*places, *(f"const {self.type_of(n)} {n} = {load};" for n, load in loads.items()), *rest]

    def in_order(self, names: set[str]) -> list[str]:
        """Return the names of vectors that are loaded, in the order in which they were found."""
        every = [*self.loads.values(), *self.gathered.values(), *self.followed.values()]
        return [n for n in dict.fromkeys(every) if n in names]

    def declared(self, taken: Taken) -> list[str]:
        """Return the declaration of an array that takes a vector's elements."""
        return [f"float {taken.name}[{self.width}];"]

    def put(self, name: str) -> str:
        """Return the statement that stores a quad."""
        return f"*reinterpret_cast<{self.vectors[name].type}*>({self.addresses[name]}) = {self.as_stored(name)};"

    def as_stored(self, name: str) -> str:
        """Return a quad as memory has it, as C."""
        return f"narrowed<{self.vectors[name].ctype}>({name})" if self.is_packed(name) else name

    def load(self, name: str) -> str:
        """Return the load of a quad, as C."""
        return f"*reinterpret_cast<const {self.vectors[name].type}*>({self.addresses[name]})"

    def loaded(self, name: str) -> str:
        """Return a quad as C: what the thread keeps of it, or the load."""
        return self.kept_or_loaded(name, self.load(name)) if name in self.held else self.load(name)

    def kept_or_loaded(self, name: str, load: str) -> str:
        """Return a quad that is kept for rows short enough, and loaded otherwise, as C."""
        return f"ITEMS ? {name}_kept[ITEMS ? j : 0] : {load}"

    # Point ----------------------------------------------------------------------------------------------------

    def point_loops(self) -> list[Loop]:
        return [*self.nest.outer, self.quad]

    def point(self) -> list[str]:
        loops = self.point_loops()
        task = Scope()
        self.begin(task)
        self.settle_lane(task)
        scope = self.open_inner(task)
        stores = [line for buffer in self.stores for line in self.store(buffer, scope)]
        lines = [*task.lines, *self.quad_lines([*scope.lines, *stores])]
        head = [
            f"const int64_t t = int64_t({self.block}) * blockDim.x + threadIdx.x;",
            f"if (t >= {self.total(loops)}) return;",
        ]
        return [*head, *self.indices(loops, "t"), *lines]

    def settle_lane(self, task: Scope) -> None:
        """Compute the values that a vector's elements have in common: nvcc does not where a function may branch."""
        assert self.axis
        lane, seen = set(self.axis.leaves), set[ir.Value]()

        def visit(value: ir.Value) -> None:
            if value in seen or isinstance(value, ir.Const | ir.Size):
                return
            seen.add(value)
            named = isinstance(value, ir.Op) and value.operator is Operator.READ
            if not named and not ir.tree_atoms(value) & lane:
                self.printer.emit(value, task)
                return
            for child in ir.children(value):
                visit(child)

        for value in self.values:
            visit(value)

    def flat(self, loops: list[Loop]) -> str:
        """Return the number of an element of these loops, as C."""
        text = loops[0].var
        for loop in loops[1:]:
            text = f"({text}) * {self.total([loop])} + {loop.var}"
        return text

    # Rows -----------------------------------------------------------------------------------------------------

    def row(self) -> list[str]:
        kept = [] if self.has_scan() else self.kept_names() or self.kept_of_one()  # a scan goes over it in stretches
        kept = [name for name in kept if name not in self.followed.values()]
        if len(kept) > FEW_KEPT:
            kept = [name for name in kept if not self.is_shared(name)]
        self.held = tuple(kept)
        dear = dear_value(self, self.items() * self.width) if self.shortens else None
        self.dear = (dear, self.printer.name("dear")) if dear else None
        return CudaRegion.row(self)

    def uses(self) -> Counter[str]:
        """Return how many passes over a row read each quad."""
        passes = [[v.arg for v in self.reductions(level)] for level in range(1, self.top + 1)]
        found: Counter[str] = Counter()
        for roots in [*passes, list(self.inner_stores().values())]:
            values = ir.walk(*roots, enter=lambda v: not isinstance(v, ir.Reduce))
            found.update(self.in_order({self.names.get(v, "") for v in values if isinstance(v, ir.Load)}))
        return found

    def kept_names(self) -> list[str]:
        """Return the quads that more than one pass uses."""
        return [name for name, count in self.uses().items() if count > 1]

    def kept_of_one(self) -> list[str]:
        """Return the quads of a row that is read once: kept, all are on their way before the first is waited for.

        Of several tensors, or of four bytes an element, a thread was no quicker so.
        """
        names = [*self.uses()]
        alone = len(names) == 1 and self.reads_once() and self.items() > 1
        return [name for name in names if alone and self.vectors[name].ctype in HALF_TYPES]

    def is_shared(self, name: str) -> bool:
        """Return whether all rows read this vector alike (a norm's weights): the cache has it then."""
        return bool(self.nest.outer) and name not in self.gathered.values() and name in self.shared

    @property
    def item_index(self) -> str:
        """Return which quad of the row is number `j` of a thread, as C."""
        return "threadIdx.x + j * blockDim.x"

    @property
    def item_exists(self) -> str:
        """Return the C condition that the row has that quad."""
        return f"k < {self.quads}"

    def keep(self) -> list[str]:
        """Return statements that load a thread's quads of a row before the first pass."""
        dear = [f"float {self.dear[1]}[ITEMS ? ITEMS : 1][{self.width}];"] if self.dear else []
        if not self.held:
            return dear
        loads = [f"{n}_kept[ITEMS ? j : 0] = {self.load(n)};" for n in self.held]
        inside = [*self.indices([*self.nest.reduced[:-1], self.quad], "k"), *loads]
        return [
            *dear,
            *(f"{self.vectors[n].type} {n}_kept[ITEMS ? ITEMS : 1];" for n in self.held),
            *self.each_item([f"if ({self.item_exists}) {{", *indent(inside), "}"]),
        ]

    @property
    def quads(self) -> str:
        """Return the number of quads of a row, as C."""
        return self.total([*self.nest.reduced[:-1], self.quad])

    def each_scanned(self, lines: list[str], place: str = "") -> list[str]:
        return ["if (inside) {", *indent(self.each(lines)), "}"]

    def exchange_scans(self, found: list[ir.Scan], inner: Scope) -> None:
        """Do nothing: scanned values are stored four at a time already."""

    def scan_pass(self, body: list[str], tail: list[str]) -> list[str]:
        before, self.before = self.before, []
        lines = self.quad_lines([*body, *tail], before)
        head = ["const int64_t k = k0 + threadIdx.x;", f"const bool inside = k < {self.quads};"]
        indices = self.indices([*self.nest.reduced[:-1], self.quad], "k")
        lines = indent([*head, *indices, *lines])
        return [f"for (int64_t k0 = 0; k0 < {self.quads}; k0 += blockDim.x) {{", *lines, "}"]

    def pass_loop(self, body: list[str], tail: list[str], kind: str, active: str, scanning: bool) -> list[str]:
        if scanning:
            return self.scan_pass(body, tail)
        indices = self.indices([*self.nest.reduced[:-1], self.quad], "k")
        lines = [*indices, *self.quad_lines([*body, *tail])]
        number = self.printer.name("sweep")
        return [f"auto {number} = [&](int64_t k, int j) {{", *indent(lines), "};", *self.each_quad(number)]

    def each_quad(self, function: str) -> list[str]:
        """Return the calls of a pass's function, one for each quad of the row that this thread has."""
        return [
            "if constexpr (ITEMS > 0) {",
            *indent(self.each_item([f"if ({self.item_exists}) {function}(k, j);"])),
            "} else {",
            *indent(self.walk(self.quads, "x", [f"{function}(k, 0);"])),
            "}",
        ]

    def each_item(self, lines: list[str]) -> list[str]:
        """Return the unrolled loop over the quads that a thread keeps."""
        head = ["#pragma unroll", "for (int j = 0; j < ITEMS; ++j) {", f"  const int64_t k = {self.item_index};"]
        return [*head, *indent(lines), "}"]

    # Launch ---------------------------------------------------------------------------------------------------

    @property
    def template(self) -> str:
        return "template <int ITEMS> " if self.nest.schedule == "row" else ""

    @property
    def row_threads(self) -> str:
        most = max(MOST_THREADS, self.parameters.threads)  # of a row that is kept: registers for what is
        return f"ITEMS ? {most} : ROW_THREADS"

    @property
    def scan_width(self) -> int:
        return self.width

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        call = f"({', '.join(arguments)});"
        if self.nest.schedule == "point":
            count = self.total([*self.nest.outer, self.quad])
            threads = self.parameters.threads // 2  # GELU in fp32: 380 us, by twice as many 383 (800 MB, an H200)
            return [f"{name}<<<blocks((small({count}) + {threads - 1}) / {threads}), {threads}, 0, stream>>>{call}"]
        outer = self.total(self.nest.outer)
        if self.has_scan():
            return [f"small({self.quads});", self.scan_launch(f"{name}<0>", self.scan_width, arguments)]
        items = self.items()
        grid = f"<<<blocks((small({outer}) + block.y - 1) / block.y), block, 0, stream>>>{call}"

        def block(items: int) -> str:
            return f"block = fitted<{name}<{items}>>(quad_block(quads, {outer}{'' if self.inner_stores() else ', 4'}));"

        lines = [f"const int64_t quads = small({self.quads});"]
        if not items:
            return [*lines, f"const dim3 {block(0)}", f"{name}<0>{grid}"]
        kept = [f"if (quads <= {items} * int64_t(block.x)) {{", f"  {name}<{items}>{grid}"]
        return [*lines, f"dim3 {block(items)}", *kept, "} else {", f"  {block(0)}", f"  {name}<0>{grid}", "}"]

    def count_of_quads(self) -> int:
        """Return the number of quads of a row as long as this problem's."""
        return self.reduced_count() // self.width

    def reads_once(self) -> bool:
        """Return whether a row is reduced in one pass, and nothing is stored along it."""
        return self.top == 1 and not self.inner_stores()

    def items(self) -> int:
        """Return how many quads each thread keeps, for rows as long as this problem's; 0 for longer ones."""
        quads, p = self.count_of_quads(), self.parameters
        few = 8 if self.inner_stores() else 16  # up to which four lanes do: more for each to add, and less to exchange
        lanes = 4 if quads <= few else 8 if quads <= 2 * few else 16 if quads <= 32 else 32  # as `quad_block` has them
        threads = lanes if quads <= WARP_QUADS else p.threads if quads <= KEPT * p.threads else MOST_THREADS
        threads = p.threads // 2 if WARP_QUADS < quads <= 2 * p.threads else threads
        items = -(-quads // threads)
        return items if items <= (2 * KEPT if threads <= 32 else KEPT) else 0
