"""CUDA for rows that no single block can hold: blocks share a row, so that it is read once however long it is.

Comes in: a region of long rows that take more than one pass. Goes out: a kernel for it in place of the vectorized one,
and the C condition under which it may run. A thread keeps its elements in shared memory, a ring in which its part of
later rows arrives while it computes on this one; it alone reads what it copied. Blocks exchange their partial results:
up to eight (sixteen of rows that are begun ahead) through each other's shared memory, as a cluster; more through global
memory, which takes all of them resident (a cooperative launch).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from rag_kernels.offline.codegen.kernel_function import Function, Sizes
from rag_kernels.offline.codegen.loop_nest import Loop
from rag_kernels.offline.codegen.reduction_levels import indent
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.cuda.elements.found_vectors import find_quads, width_of
from rag_kernels.offline.cuda.elements.vectorized import KEPT_BYTES, Taken, VectorizedRegion
from rag_kernels.offline.cuda.kernel_text import Parameter
from rag_kernels.offline.cuda.reduce_loops import count_of
from rag_kernels.offline.cuda.region import CudaParameters
from rag_kernels.offline.cuda.texts.multi_block_rows import BOARD
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF
from rag_kernels.offline.ir.patterns import in_double, squared_in_double
from rag_kernels.offline.ir.reductions import Kind

SIXTEEN = {"float": 4, "__nv_bfloat16": 2, "__half": 2}  # C types of what the ring holds, and their bytes
SLOTS = 14  # quads that a thread has room for: with 1024 threads 224 KiB, what a Hopper's processor has
MAX_ROW_SLOTS = 12  # of these, for one row: the others receive copies meanwhile
FEW_ROWS = 264  # of one block each; two keep a processor of an H200 busy
MAX_CLUSTER_BLOCKS = 8  # of a cluster that every device with clusters takes
MOST_CLUSTER_BLOCKS = 16  # that a Hopper takes where it is asked to: for rows that are begun ahead
MAX_CLUSTER_VALUES = 8  # partial results that the blocks of a cluster publish
BLOCK_BYTES = 227 << 10  # of shared memory: a block's at most
AHEAD_SLOTS = 27  # quads of a thread where a row is begun before another ends, by 512 threads a processor
STEADY_WORDS = 64  # registers of what all rows read alike
MAX_ROW_ELEMENTS = 66 * 1024 * MAX_ROW_SLOTS * 4  # two rows at a time, so that memory works while one waits


@dataclass(slots=True)
class MultiBlockRegion(VectorizedRegion):
    """Prints a kernel whose teams of blocks take whole rows; `ITEMS` vectors of a row are a thread's own."""

    gathers: bool = False
    stored: str = "float"  # C type of the ring's elements
    strided: bool = False  # a thread's four elements are a block's threads apart, where rows begin anywhere
    passed: int = 0  # passes over a row, as far as they are printed
    own_means: int = 0  # those by which a thread knows the mean of what it has
    joined: int = 0  # reductions that teams exchange, as far as they are printed
    leading: bool = False  # in the passes of the next row, before those that store this one
    shows: list[str] = field(default_factory=list)  # how a warp shows what a block has of a row
    looks: list[str] = field(default_factory=list)  # and how each thread looks at what all have shown
    begun: set[str] = field(default_factory=set)  # elements of its own about which a thread sums, as far as set

    def condition(self, name: str) -> str:
        """Return when the kernel of this name may run, as C."""
        aligned = "" if self.strided else VectorizedRegion.condition(self, name)
        items = self.items()
        fits = f"fits({name}<{items}, false>, small({self.row_vectors}), {items}, {self.threads}, {self.bytes})"
        return f"{aligned} && {fits}" if aligned else fits

    def row(self) -> list[str]:
        """Return the statements of the kernel: the ring is filled ahead while a team takes row after row."""
        first, outer = "team.part() == 0 && threadIdx.x == 0", self.total(self.nest.outer)
        rows = self.rows_ahead(first, outer) if self.begins_ahead() else self.rows_in_turn(first, outer)
        own = f"{self.quads} > first ? ({self.quads} - first - 1) / {{0}} + 1 : 0"
        elements = "FULL || single > 4 * ITEMS ? 4 * ITEMS : int(single)" if self.strided else f"{self.width} * own"
        return [
            "int met = 0;",
            f"team.enter<{self.meetings()}>();",
            f"const int first = int(team.part()) * ITEMS * {self.step_of_item} + threadIdx.x;",
            f"const int64_t left = {own.format(self.step_of_item)};",
            "const int own = FULL || left > ITEMS ? ITEMS : int(left);",
            *([f"const int64_t single = {own.format(self.threads)};"] if self.strided else []),
            f"const int elements = {elements};",
            *(f"const Quotient of_{loop.var}({loop.size});" for loop in self.inner_loops()),
            f"Ring<{self.stored}, {len(self.held)}, {self.slots}, {self.threads}> ring;",
            *self.keep_steady(),
            *self.prefetch(outer),
            *rows,
            "team.leave();",
        ]

    def rows_in_turn(self, first: str, outer: str) -> list[str]:
        """Return the loop in which a team ends one row before it begins another."""
        return [
            f"for (int64_t t = team.number(); t < {outer}; t += team.count) {{",
            *indent(self.indices(self.nest.outer, "t")),
            *indent([*self.coming(), *self.passes("row", "true", first)]),
            "  ring.done(ITEMS);",
            "}",
        ]

    def rows_ahead(self, first: str, outer: str) -> list[str]:
        """Return the loop in which a team reduces the next row before it stores one, whose meeting has that time."""
        scope, stores = Scope(), Scope()
        self.begin(scope)
        self.leading = True
        self.reduce_pass(1, "row", "true", scope)
        self.leading = False
        stores.known |= {v: scope.known[v] for v in self.reductions(1)}
        self.begin(stores)
        stored = self.ending(stores, "row", "true", first)
        indices = self.indices(self.nest.outer, "t")
        m = self.meetings()
        return [
            "auto show = [&](bool there) {",
            "  if (there && threadIdx.x < 32) {",
            *indent(self.shows),
            "  }",
            "  ++met;",
            "};",
            "for (int64_t last = int64_t(team.number()) - team.count, later = team.number(); "
            f"last < {outer}; last = later, later += team.count) {{",
            "  const bool begun = last >= 0;",
            "  const int ahead = begun ? ITEMS : 0;",
            f"  if (later < {outer}) {{",
            *indent(indent(["const int64_t t = later;", *indices, *scope.lines])),
            "  }",
            "  __syncthreads();",
            "  if (!begun) {",
            f"    show(later < {outer});",
            "    continue;",
            "  }",
            f"  team.meet<{m}>(met - 1);",
            *indent(self.looks),
            f"  show(later < {outer});",
            "  const int64_t t = last;",
            *indent([*indices, *self.coming(), *stored]),
            "  ring.done(ITEMS);",
            "}",
        ]

    def begins_ahead(self) -> bool:
        """Return whether a row is begun before another ends: where blocks meet once, in a cluster, with room for two.

        Rows of fp32 were slower so where they take exponentials and have no weights, which then stay in registers.
        """
        once = self.top == 1 and bool(self.inner_stores()) and self.sums() <= MAX_CLUSTER_VALUES
        costly = any(isinstance(v, ir.Op) and v.operator.traits.costly for v in ir.walk(*self.values))
        cheap = self.stored != "float" or bool(self.shared - {*self.held}) or not costly
        room = MOST_CLUSTER_BLOCKS * self.ahead_items() * (self.parameters.sharing // 2)
        return once and cheap and len(self.nest.reduced) == 1 and not self.strided and self.count() <= room

    def ahead_items(self) -> int:
        """Return how many vectors of a row a thread has at most, where there is room for two rows and more."""
        return min(8, AHEAD_SLOTS // max(1, len(self.held)) // 2 - 1)

    def meetings(self) -> int:
        """Return how many meetings blocks may be in at once."""
        return 4 if self.begins_ahead() else 2

    def prefetch(self, outer: str) -> list[str]:
        """Return functions that tell where a row begins, and copy a vector to the ring; and the first copies."""
        many = f", {self.axis_size} - k" if self.strided else ""
        starts = [self.starts[n] for n in self.held]
        call = f"ring.copy{'_apart' * self.strided}"
        copies = [f"{call}({n}, place, from.of[{n}] + {within}{many});" for n, (_, within) in enumerate(starts)]
        inner = self.indices([*self.nest.reduced[:-1], self.quad], "k")
        of_rows = f"Starts<{self.stored}, {len(starts)}>"
        return [
            f"auto start = [&](int64_t t) -> {of_rows} {{",
            *indent([*self.indices(self.nest.outer, "t"), f"return {{{{{', '.join(row for row, _ in starts)}}}}};"]),
            "};",
            f"auto bring = [&](const {of_rows}& from, int64_t t, int item, int place) {{",
            f"  if (t < {outer} && (FULL || item < own)) {{",
            f"    const int k = first + item * {self.step_of_item};",
            *indent(indent([*inner, *copies])),
            "  }",
            "  close_copies();",
            "};",
            "#pragma unroll",
            f"for (int i = 0; i < {self.slots}; ++i) {{",
            "  const int64_t t = team.number() + i / ITEMS * team.count;",
            "  bring(start(t), t, i % ITEMS, i);",
            "}",
        ]

    def coming(self) -> list[str]:
        """Return which rows come into the places of this one, and the function that brings a vector of them."""
        return [
            f"const int64_t near_row = t + {self.slots} / ITEMS * team.count, far_row = near_row + team.count;",
            "const auto near = start(near_row), far = start(far_row);",
            "auto take_next = [&](int j) {",
            f"  const int i = {self.slots} % ITEMS + j;",
            "  if (i < ITEMS) bring(near, near_row, i, j);",
            "  else bring(far, far_row, i - ITEMS, j);",
            "};",
        ]

    def inner_loops(self) -> list[Loop]:
        """Return the loops within a row whose indices are computed by division."""
        return [*self.nest.reduced[1:-1], self.quad] if len(self.nest.reduced) > 1 else []

    def indices(self, loops: list[Loop], flat: str) -> list[str]:
        """Return statements for the loops' variables; those within a row are found by exact products."""
        if flat != "k":
            return VectorizedRegion.indices(self, loops, flat)
        lines, rest = [], flat
        for loop in reversed(loops[1:]):
            lines += [
                f"const uint32_t over_{loop.var} = of_{loop.var}({rest});",
                f"const int64_t {loop.var} = {rest} - over_{loop.var} * of_{loop.var}.by;",
            ]
            rest = f"over_{loop.var}"
        return [*lines, f"const int64_t {loops[0].var} = {rest};"]

    @property
    def quad(self) -> Loop:
        assert self.axis
        return replace(self.axis, var=f"{self.axis.var}_q") if self.strided else VectorizedRegion.quad.__get__(self)

    @property
    def element(self) -> str:
        return f"{self.quad.var} + u * {self.threads}" if self.strided else VectorizedRegion.element.__get__(self)

    @property
    def axis_size(self) -> str:
        assert self.axis
        return self.axis.size

    @property
    def step_of_item(self) -> int:
        """Return the distance from one vector of a thread to its next.

        It is in vectors, or in elements where these are strided.
        """
        return self.threads * (4 if self.strided else 1)

    def declared(self, taken: Taken) -> list[str]:
        lines = VectorizedRegion.declared(self, taken)
        fill = f"for (int u = 0; u < {self.width}; ++u) {taken.name}[u] = {taken.start};"
        return [*lines, "#pragma unroll", fill] if self.strided else lines

    def each(self, lines: list[str]) -> list[str]:
        assert self.axis
        inside = f"if (FULL || {self.axis.var} < {self.axis.size}) {{"
        return VectorizedRegion.each(self, [inside, *indent(lines), "}"] if self.strided else lines)

    @property
    def item_index(self) -> str:
        return f"first + j * {self.step_of_item}"

    @property
    def item_exists(self) -> str:
        return "FULL || j < own"

    def keep(self) -> list[str]:
        return []  # the ring is filled ahead

    def kept_or_loaded(self, name: str, load: str) -> str:
        return f"ring.at({self.held.index(name)}, {'ahead + ' * self.leading}j)"

    def loaded(self, name: str) -> str:
        return f"{name}_kept[j]" if name in self.steady() else VectorizedRegion.loaded(self, name)

    def steady(self) -> list[str]:
        """Return the vectors that all rows read alike, and a thread keeps: the second level cache was behind."""
        if not self.begins_ahead():
            return []
        names = [n for n in self.in_order(self.shared) if n not in self.held and self.is_sixteen(n)]
        return names[: STEADY_WORDS // (4 * self.items())]

    def keep_steady(self) -> list[str]:
        """Return statements that load these."""
        inner = self.indices([*self.nest.reduced[:-1], self.quad], "k")
        loads = [f"{n}_kept[j] = {self.load(n)};" for n in self.steady()]
        inside = [f"if ({self.item_exists}) {{", *indent([*inner, *loads]), "}"]
        kept = [f"{self.vectors[n].type} {n}_kept[ITEMS];" for n in self.steady()]
        return [*kept, *self.each_item(inside)] if kept else []

    def put(self, name: str) -> str:
        place = self.addresses[name]
        whole = self.vectors[name].ctype == self.stored and self.is_sixteen(name)
        return f"put_whole({place}, whole({name}));" if whole else VectorizedRegion.put(self, name)

    def is_sixteen(self, name: str) -> bool:
        """Return whether a vector of this name has sixteen bytes, as the ring's have."""
        return SIXTEEN.get(self.vectors[name].ctype, 0) * self.vectors[name].count == 16

    def each_quad(self, function: str) -> list[str]:
        """Return the loop of a pass over a thread's vectors.

        A row's first pass takes what has arrived and waits for the rest, one by one; its last makes room for another.
        """
        self.passed += 1
        last = self.passed == self.top + bool(self.inner_stores()) + self.own_means
        unroll, *loop = self.each_item(
            [f"if ({self.item_exists}) {function}(k, j);", *(["take_next(j);"] if last else [])]
        )
        if self.passed > 1:
            return [unroll if last else "#pragma unroll 4", *loop]
        later = " - ITEMS" * self.begins_ahead()
        return [unroll, loop[0], f"  await_copies({self.slots - 1}{later} - j);", *loop[1:]]

    def comes_back(self) -> bool:
        """Return whether a row is needed again once something of it is known.

        Sums alone gain nothing by teams (0.988 ms for 0.985 on an H200, group norm), but where rows are too few to keep
        a device busy.
        """
        few = count_of(self.nest.outer) < FEW_ROWS and any(v.kind is Kind.MAXSUM for v in self.reductions(1))
        return self.top + bool(self.inner_stores()) > 1 or few

    def reduce_pass(self, level: int, kind: str, active: str, scope: Scope) -> None:
        """Add a pass, in which each thread sums squares in fp32 about a number of its own: the first, or the mean."""
        for v in self.reductions(level):
            if squared_x := squared_in_double(v.arg):
                name = self.printer.name("about")
                scope.known[squared_x, "about"] = name
                scope.lines.append(f"float {name} = 0, {name}_sum = 0, {name}_squares = 0;")
                if self.has_mean_first(squared_x):
                    self.add_own_mean(squared_x, name, scope)
        VectorizedRegion.reduce_pass(self, level, kind, active, scope)

    @staticmethod
    def has_mean_first(x: ir.Value) -> bool:
        """Return whether a thread goes over what it has twice, which on an H200 was 10 % quicker with fp32 rows."""
        loads = [v for v in ir.walk(x) if isinstance(v, ir.Load)]
        costly = any(isinstance(v, ir.Op) and v.operator.traits.costly for v in ir.walk(x))
        return not costly and all(v.storage == "float32" for v in loads)

    def add_own_mean(self, x: ir.Value, name: str, scope: Scope) -> None:
        """Add one pass over what a thread has, by which it knows the mean of that."""
        self.begun.add(name)
        self.own_means += 1
        self.settle([x], scope)
        inner = self.open_inner(scope)
        text = self.printer.emit(x, inner)
        scope.lines += self.pass_loop([*inner.lines, f"{name} += {text};"], [], "row", "true", scanning=False)
        scope.lines.append(f"{name} /= elements ? elements : 1;  // the mean of what this thread has")

    def step(self, value: ir.Reduce, name: str, acc_type: str, scope: Scope, block: Scope) -> str:
        """Return the statement that takes one more element.

        Sums run in fp32 over the few elements of a thread: of squares about a mean of its own, so that no digits are
        lost.
        """
        plain, of_square = in_double(value.arg), squared_in_double(value.arg)
        x = plain or of_square
        about = scope.find((x, "about")) if x else None
        if about and x and value.kind is Kind.SUM:
            own, text = "double(elements)", self.printer.emit(x, block)
            if about not in self.begun:
                self.begun.add(about)
                block.lines.append(f"if (j == 0 && u == 0) {about} = {text};")
            if plain:
                self.finish.append(f"{name} = {about}_sum + {own} * {about};")
                return f"{about}_sum += {text} - {about};"
            self.finish.append(f"{name} = {about}_squares + {about} * (2.0 * {about}_sum + {own} * {about});")
            return f"{about}_squares += ({text} - {about}) * ({text} - {about});"
        if acc_type == "double" and value.kind is Kind.SUM and value.dtype == "float32":
            scope.lines.append(f"float {name}_f = 0;")
            self.finish.append(f"{name} = {name}_f;")
            return f"{name}_f += {self.printer.emit(value.arg, block)};"
        return VectorizedRegion.step(self, value, name, acc_type, scope, block)

    def join(self, found: list[tuple[str, str, str]], kind: str) -> list[str]:
        """Return statements that combine partial results of all blocks.

        Every block publishes what it has, all of the team meet, and each combines what all have published.
        """
        numbered = list(enumerate(found, self.joined))
        self.joined += len(found)
        lines, self.finish = self.finish, []
        ahead, m = self.begins_ahead(), self.meetings()
        met = "met - 1" if ahead else "met"
        lines += [f"put_part<{i}>(met % 2, {name}, {f});" for i, (name, f, _) in numbered]
        shows = [f"  team.show<{i}, {m}>(met, take_part<{i}>(met % 2, {f}, {start}));" for i, (_, f, start) in numbered]
        gathers = [f"team.gather<{i}>(met, {f}, {start});" for i, (_, f, start) in numbered]
        define = "const auto " if ahead else ""
        looks = [f"{define}{name} = team.look<{i}, {m}>({met}, {f}, {start});" for i, (name, f, start) in numbered]
        if ahead:
            self.shows, self.looks = shows, looks
            return lines
        lines += ["__syncthreads();", "if (threadIdx.x < 32) {", *shows, "}", *gathers, f"team.meet<{m}>(met);"]
        return [*lines, *looks, "++met;"]

    @property
    def template(self) -> str:
        return "template <int ITEMS, bool FULL> "

    @property
    def bounds(self) -> str:
        return f"__launch_bounds__({self.threads}, {1 if self.begins_ahead() else 1024 // self.threads}) "

    def parameters_of(self, body: list[str], function: Function, kind: str = "int64_t") -> list[Parameter]:
        team = "Cluster" if self.parts() <= self.most_blocks() and self.sums() <= MAX_CLUSTER_VALUES else "Team"
        return [Parameter(team, "team"), *VectorizedRegion.parameters_of(self, body, function, kind)]

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        rows, items = f"small({self.total(self.nest.outer)})", self.items()
        plan = f"{rows}, small({self.row_vectors}), {items}, {self.threads}, {self.bytes}, {self.sums()}, stream, "
        plan += f"{', '.join(arguments)});"
        return [
            f"if (({self.quads}) % ({items * self.step_of_item}) == 0) spread({name}<{items}, true>, {plan}",
            f"else spread({name}<{items}, false>, {plan}",
        ]

    @property
    def slots(self) -> int:
        """Return how many vectors of each kept tensor a thread has room for."""
        return (AHEAD_SLOTS if self.begins_ahead() else SLOTS) // max(1, len(self.held))

    @property
    def threads(self) -> int:
        """Return the threads of a block: half as many, so that a processor has two, where a row is short.

        Also where elements have two bytes: one block computes, twice as much a byte, while memory works for the other.
        """
        most = self.parameters.sharing
        half = self.begins_ahead() or (len(self.held) == 1 and self.stored != "float")
        return most // 2 if half or self.count() <= self.most() * most // 2 else most

    @property
    def bytes(self) -> int:
        """Return the shared memory of a block's ring, in bytes."""
        return self.slots * max(1, len(self.held)) * self.threads * 16

    def shown_bytes(self) -> int:
        """Return the shared memory, in bytes, of what warps and blocks show each other, and of counters."""
        pairs = sum(isinstance(v, ir.Reduce) and v.kind is Kind.MAXSUM for v in ir.walk(*self.values))
        return 8 * (64 + self.most_blocks() * self.meetings()) * (self.sums() + pairs) + 8 * self.meetings()

    @property
    def row_vectors(self) -> str:
        """Return the number of vectors of a row, as C."""
        return f"(({self.quads}) + 3) / 4" if self.strided else self.quads

    def count(self) -> int:
        """Return the number of vectors of a row as long as this problem's."""
        return -(-self.reduced_count() // self.width)

    def most(self) -> int:
        """Return how many vectors of a row a thread takes at most."""
        return self.ahead_items() if self.begins_ahead() else max(1, self.slots * MAX_ROW_SLOTS // SLOTS)

    def most_blocks(self) -> int:
        """Return how many blocks of a row may be a cluster."""
        return MOST_CLUSTER_BLOCKS if self.begins_ahead() else MAX_CLUSTER_BLOCKS

    def has_large_clusters(self) -> bool:
        """Return whether a row takes a cluster that not every device with clusters has room for."""
        return self.begins_ahead() and self.parts() > MAX_CLUSTER_BLOCKS

    def parts(self) -> int:
        """Return how many blocks share a row.

        It is a few more than needed if then each has as much as the others.
        """
        least = -(-self.count() // (self.most() * self.threads))
        even = [n for n in range(least, self.most_blocks() + 1) if self.count() % (n * self.threads) == 0]
        return even[0] if even else least

    def items(self) -> int:
        """Return how many vectors of a row each thread takes."""
        return -(-self.count() // (self.parts() * self.threads))


def multi_block_region(
    region: Region, function: Function, sizes: Sizes, parameters: CudaParameters
) -> MultiBlockRegion | None:
    """Return the kernel of teams, or None unless rows are long, take more than one pass, and can be kept."""
    if not parameters.sharing:
        return None
    found = MultiBlockRegion.of(region, function, sizes, parameters)
    rows = found.nest.schedule == "row" and not found.has_scan() and found.top > 0
    if not rows or found.reduced_count() > MAX_ROW_ELEMENTS or not found.comes_back() or not prepared(found):
        return None
    if found.count() * 16 <= KEPT_BYTES:
        return None
    kept = tuple(name for name in found.kept_names() if found.is_sixteen(name))
    stored = {found.vectors[name].ctype for name in kept}
    if len(stored) != 1 or len(kept) > SLOTS // 2 or found.sums() > BOARD:
        return None
    if found.reduced_count() > MAX_ROW_ELEMENTS // len(kept):
        return None
    found.held, found.stored = kept, stored.pop()
    if found.bytes + found.shown_bytes() > BLOCK_BYTES:
        return None
    if found.strided:
        found.loads = {text: name for text, name in found.loads.items() if name in kept}
    return found


def prepared(found: MultiBlockRegion) -> bool:
    """Record what can be taken four at a time, and return whether there is anything.

    Neighbours where rows allow it, else elements that lie a block's threads apart.
    """
    found.width = width_of(found)
    if found.nest.reduced[-1].count % found.width == 0 and found.parameters.vector > 1:
        return find_quads(found)
    halves = any(found.printer.storage[v.buffer] in HALF for v in found.nest.accesses)
    if len(found.nest.reduced) > 1 or halves:
        return False
    found.width = 1
    some = find_quads(found)
    found.width, found.strided, found.targets = 4, True, {}
    found.vectors = {name: replace(vector, count=4) for name, vector in found.vectors.items()}
    return some
