"""C++/OpenMP for one region of a function that is no product.

Comes in: a Nest and tuning parameters. Goes out: statements. A `row` region takes one row after the other, with all
passes over it while it is in the cache; a `column` region keeps a tile of neighbouring columns in small arrays; a
`point` region is one pass. Long sums go through short float partials into doubles.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from rag_kernels.offline.codegen.c_types import CTYPES
from rag_kernels.offline.codegen.kernel_function import SHORT
from rag_kernels.offline.codegen.reduction_levels import RegionPrinter, accumulator, around, indent
from rag_kernels.offline.codegen.reduction_texts import C, start_of
from rag_kernels.offline.codegen.statements import Scope
from rag_kernels.offline.fusion.stores.stored_first import is_costly
from rag_kernels.offline.graph.training_step import DEAR
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.reductions import Kind

FAR, FAR_LANES = 4, 4  # elements between neighbouring lanes that are far, and lanes of a vector where they are
SHARED_ELEMENTS = 8192  # of a region that several threads share, if each takes few operators; of fewer where it takes
MANY_OPERATORS = 32  # several times as many
COLUMN_BLOCK = 64  # rows summed in float before they join the double
KEEP_LIMIT = 1 << 16  # longest row whose values are kept, in elements


@dataclass(frozen=True, slots=True)
class CpuParameters:
    """Tuning parameters of C++ kernels."""

    block: int = 512  # elements summed in float before they join the double
    tile: int = 4096  # elements of a pointwise task
    lanes: int = 1024  # columns of a column task
    keep: bool = True  # keep costly row values for the next pass rather than computing them again
    schedule: str = "static"
    rows: int = 256  # of a task of a product, and below its columns and the terms summed in float
    columns: int = 256
    depth: int = 256
    products: int = 1  # whose products: 0 the library's, 1 ours where that is better, 2 ours
    attention: int = 1  # whether attention is one operator of ours
    short: int = SHORT  # rows of at most so many steps are unrolled; 0 where other sizes are to be served
    saving: int = DEAR  # of a training step's values: 0 none are saved, 1 what is dear to compute again, 2 all

    @property
    def free_sizes(self) -> bool:
        """Return whether sizes that follow from what a loop runs along are computed: here always."""
        return True


@dataclass(slots=True)
class CpuRegion(RegionPrinter):
    """Prints one region that is no product."""

    parameters: CpuParameters = CpuParameters()

    def text(self) -> list[str]:
        """Return the region's statements."""
        shape = " x ".join(loop.size for loop in [*self.nest.outer, *([self.nest.lane] if self.nest.lane else [])])
        reduced = " x ".join(loop.size for loop in self.nest.reduced)
        note = f"// {self.told}: {shape or '1'} elements"
        if reduced:
            note = f"// {self.told}: {shape or '1'} {self.nest.schedule}s of {reduced}"
        body = self.row() if self.nest.schedule == "row" else self.lanes()
        return [note, *body]

    # Tasks ----------------------------------------------------------------------------------------------------

    def tasks(self, body: list[str], setup: list[str], tiles: str = "") -> list[str]:
        """Return a parallel loop over all outer loops (and tiles of lanes), with the indices unflattened."""
        loops = self.nest.outer
        sizes = [loop.size for loop in loops] + ([tiles] if tiles else [])
        total = " * ".join(f"({size})" if " " in size else size for size in sizes)
        head: list[str] = []
        rest = "t"
        if tiles:
            head.append(f"const int64_t tile = t % {tiles};")
            rest = f"(t / {tiles})"
        for k, loop in reversed(list(enumerate(loops))):
            size = f"({loop.size})"
            head.append(f"const int64_t {loop.var} = {rest}{f' % {size}' if k else ''};")
            rest = f"({rest} / {size})"
        body = [f"for (int64_t t = 0; t < {total or '1'}; ++t) {{", *indent(head), *indent(body), "}"]
        schedule, enough = f"schedule({self.parameters.schedule})", self.enough()
        if not setup:
            return [f"#pragma omp parallel for {schedule} {enough}", *body]
        return [f"#pragma omp parallel {enough}", "{", *indent([*setup, f"#pragma omp for {schedule}", *body]), "}"]

    def enough(self) -> str:
        """Return the clause that lets threads share a region of enough elements: waking them takes microseconds."""
        nest = self.nest
        loops = [*nest.outer, *([nest.lane] if nest.lane else []), *nest.reduced]
        operators = sum(isinstance(v, ir.Op) for v in ir.walk(*self.values))
        most = SHARED_ELEMENTS // max(1, operators // MANY_OPERATORS)
        return f"if ({' * '.join(loop.size for loop in loops) or '1'} > {most})"

    # Row schedule ---------------------------------------------------------------------------------------------

    def row(self) -> list[str]:
        """Return the row schedule: one pass for each level of reductions, then one that stores."""
        scope = Scope()
        setup: list[str] = []
        for level in range(1, self.top + 1):
            self.row_pass(level, scope, setup)
        inner_stores = self.inner_stores()
        if inner_stores:
            for v in self.frontier(list(inner_stores.values())):
                self.printer.emit(v, scope)
            inner = Scope(scope)
            self.prepare_inner(inner)
            scans = self.scans(list(inner_stores.values()), scope, inner)
            for buffer in inner_stores:
                inner.lines += self.store(buffer, inner)
            scope.lines += self.pass_loop(inner.lines, "" if scans else "#pragma omp simd", [], [])
        for buffer in [b for b in self.stores if b not in inner_stores]:
            scope.lines += self.store(buffer, scope)
        return self.tasks(scope.lines, setup)

    def row_pass(self, level: int, scope: Scope, setup: list[str]) -> None:
        """Add the pass over the row that completes every reduction of this level."""
        found = self.reductions(level)
        roots = [v.arg for v in found] + [g for v in found for g in v.guards]
        for v in self.frontier(roots):
            self.printer.emit(v, scope)
        inner = Scope(scope)
        self.prepare_inner(inner)
        scans = self.scans(roots, scope, inner)
        before: list[str] = []
        after: list[str] = []
        clauses: list[str] = []
        for v in found:
            self.accumulate(v, scope, inner, before, after, clauses)
        for v in self.worth_keeping(roots, level):
            array = self.printer.name("row")
            ctype = CTYPES[v.dtype]
            length = " * ".join(f"({loop.size})" for loop in self.nest.reduced)
            setup.append(f"std::unique_ptr<{ctype}[]> {array}_memory(new {ctype}[{length}]);")
            setup.append(f"{ctype}* const {array} = {array}_memory.get();")
            inner.lines.append(f"{array}[{self.row_position()}] = {self.printer.emit(v, inner)};")
            self.kept[v] = array
        simd = "" if scans else "#pragma omp simd" + "".join(f" {c}" for c in clauses)
        scope.lines += self.pass_loop(inner.lines, simd, before, after)

    def accumulate(
        self, value: ir.Reduce, scope: Scope, inner: Scope, before: list[str], after: list[str], clauses: list[str]
    ) -> None:
        """Add one reduction to a pass: a partial result for each block of elements, and the total.

        Lines go to the scopes and lists of the pass; a NaN is noted apart, so that the loop vectorises.
        """
        name = self.printer.name("acc")
        acc_type, ctype = accumulator(value), CTYPES[value.dtype]
        start = start_of(value.kind, value.dtype)
        scope.lines.append(f"{acc_type} {name}_all = {start};")
        part = ctype if acc_type == "double" else acc_type
        before.append(f"{part} {name}_part = {start};")
        text = self.printer.emit(value.arg, inner)
        kind = C[value.kind]
        step = kind.step_in_blocks or kind.step
        guard = " && ".join(self.printer.emit(g, inner) for g in value.guards)
        line = step.format(a=f"{name}_part", v=text)
        inner.lines.append(f"if ({guard}) {{ {line} }}" if guard else line)
        after.append(step.format(a=f"{name}_all", v=f"{name}_part"))
        clauses.append(f"reduction({kind.openmp} : {name}_part)")
        result = f"{ctype}({name}_all)"
        if value.kind in {Kind.MAX, Kind.MIN} and value.dtype.startswith("float"):
            scope.lines.append(f"int {name}_nan = 0;")
            inner.lines.append(f"{name}_nan |= {text} != {text};")
            clauses.append(f"reduction(| : {name}_nan)")
            result = f"({name}_nan ? {ctype}(NAN) : {name}_all)"
        scope.known[value] = result

    def prepare_inner(self, inner: Scope) -> None:
        """Let the scope of a pass read kept values from their row buffers."""
        for key, array in self.kept.items():
            inner.known[key] = f"{array}[{self.row_position()}]"

    def row_position(self) -> str:
        """Return the index of an element within its row, as C."""
        text = ""
        for loop in self.nest.reduced:
            text = f"({text}) * ({loop.size}) + {loop.var}" if text else loop.var
        return text

    def worth_keeping(self, roots: list[ir.Value], level: int) -> list[ir.Value]:
        """Return costly inner values of this pass that a later pass needs again."""
        length = 1
        for loop in self.nest.reduced:
            length *= loop.count
        if not self.parameters.keep or length > KEEP_LIMIT:
            return []
        now = {v for root in roots for v in ir.walk(root, enter=lambda v: not isinstance(v, ir.Reduce))}
        later: dict[ir.Value, None] = {}
        for v in [*self.values, *(r.arg for n in range(level + 1, 9) for r in self.reductions(n))]:
            stop = ir.walk(v, enter=lambda v: not isinstance(v, ir.Reduce) and not self.costly(v, now))
            later |= dict.fromkeys(x for x in stop if self.costly(x, now))
        return [v for v in later if v not in self.kept]

    def costly(self, value: ir.Value, now: set[ir.Value]) -> bool:
        """Return whether a value of this pass takes expensive operators."""
        if value not in now or not isinstance(value, ir.Op) or not self.is_inner(value):
            return False
        below = ir.walk(value, enter=lambda v: isinstance(v, ir.Op))
        return any(isinstance(v, ir.Op) and v.operator.traits.costly for v in below)

    def scans(self, roots: list[ir.Value], scope: Scope, inner: Scope) -> list[ir.Scan]:
        """Add running totals to a pass: the accumulator lives outside the loop, the step inside."""
        found = [v for v in ir.walk(*roots, enter=lambda v: not isinstance(v, ir.Reduce)) if isinstance(v, ir.Scan)]
        for v in found:
            name = self.printer.name("s")
            scope.lines.append(f"{accumulator(v)} {name} = {start_of(v.kind, v.dtype)};")
            inner.lines.append(C[v.kind].step.format(a=name, v=self.printer.emit(v.arg, inner)))
            inner.known[v] = self.printer.assign(v, f"{CTYPES[v.dtype]}({name})", inner)
        return found

    def pass_loop(self, body: list[str], simd: str, before: list[str], after: list[str]) -> list[str]:
        """Return all reduced loops around the body.

        The innermost runs in blocks, whose partial results join in between.
        """
        *outer, last = self.nest.reduced
        first, end = ("lo", "hi") if before else ("0", last.size)
        loop = [
            *([simd] if simd else []),
            f"for (int64_t {last.var} = {first}; {last.var} < {end}; ++{last.var}) {{",
            *indent(body),
            "}",
        ]
        if not before:
            return around(outer, loop)
        lines = [
            f"for (int64_t lo = 0; lo < {last.size}; lo += BLOCK) {{",
            f"  const int64_t hi = lo + BLOCK < {last.size} ? lo + BLOCK : {last.size};",
            *indent([*before, *loop, *after]),
            "}",
        ]
        return around(outer, lines)

    # Lane schedules: point and column ---------------------------------------------------------------------------

    def lanes(self) -> list[str]:
        """Return the point or column schedule: tasks of neighbouring lanes."""
        nest = self.nest
        width = "TILE" if nest.schedule == "point" else "LANES"
        if nest.lane is None:  # a single element
            scope = Scope()
            stores = [line for buffer in self.stores for line in self.store(buffer, scope)]
            return ["{", *indent([*scope.lines, *stores]), "}"]
        size = f"({nest.lane.size})"
        task = Scope()
        for level in range(1, self.top + 1):
            self.column_pass(level, task)
        inner_stores = self.inner_stores()
        if inner_stores:
            self.hoist(list(inner_stores.values()), task)
            same = self.same_for_lanes(inner_stores.values(), task)
            inner = Scope(same)
            self.lane_scans(list(inner_stores.values()), task, inner)
            for buffer in inner_stores:
                inner.lines += self.store(buffer, inner)
            task.lines += around(nest.reduced, [*same.lines, *self.lane_loop(inner.lines)])
        if len(inner_stores) < len(self.stores):
            buffers = [b for b in self.stores if b not in inner_stores]
            same = self.same_for_lanes((self.stores[b] for b in buffers), task, nest.region.reduced)
            inner = Scope(same)
            for buffer in buffers:
                inner.lines += self.store(buffer, inner)
            task.lines += same.lines
            task.lines += self.lane_loop(around(nest.reduced if nest.schedule == "point" else [], inner.lines))
        bounds = [f"const int64_t lo = tile * {width}, hi = lo + {width} < {size} ? lo + {width} : {size};"]
        declared = f"const int64_t tiles = ({nest.lane.size} + {width} - 1) / {width};"
        return ["{", *indent([declared, *self.tasks([*bounds, *task.lines], [], "tiles")]), "}"]

    def same_for_lanes(self, roots: Iterable[ir.Value], task: Scope, loops: Iterable[ir.Atom] = ()) -> Scope:
        """Return a scope around the loop over lanes, with what is costly and the same for all of them.

        g++ takes little out of a vectorised loop: no function. What runs over one of `loops` stays inside.
        """
        nest, scope = self.nest, Scope(task)
        inside = {*(nest.lane.leaves if nest.lane else ()), *loops}
        todo, seen = [*roots], set[ir.Value]()
        while todo:
            value = todo.pop()
            if value in seen or task.find(value) is not None or isinstance(value, ir.Reduce | ir.Scan):
                continue
            seen.add(value)
            below = tuple(ir.walk(value)) if ir.tree_atoms(value).isdisjoint(inside) else ()
            if any(map(is_costly, below)) and not any(isinstance(v, ir.Reduce | ir.Scan) for v in below):
                self.printer.emit(value, scope)
            else:
                todo += ir.children(value)
        return scope

    def lane_loop(self, body: list[str], bounds: tuple[str, str] = ("lo", "hi")) -> list[str]:
        """Return the vectorised loop over the lanes of a task."""
        simd = f"#pragma omp simd{f' simdlen({FAR_LANES})' if self.lies_apart() else ''}"
        return [simd, f"for (int64_t l = {bounds[0]}; l < {bounds[1]}; ++l) {{", *indent(body), "}"]

    def lies_apart(self) -> bool:
        """Return whether most elements that neighbouring lanes take are narrow and far from each other.

        No instruction gathers them: of 32 lanes at once g++ took minutes over twenty columns of a stack.
        """
        nest, storage = self.nest, self.printer.storage
        if not nest.lane:
            return False
        accesses = [
            *((storage[v.buffer], a) for v, a in nest.accesses.items()),
            *((storage[b], a) for b, a in nest.stores.items()),
        ]
        inner = nest.lane.leaves[-1]
        far = [ITEMSIZE.get(stored, 4) < 4 and a.stride(inner) > FAR for stored, a in accesses]
        return 2 * sum(far) > len(far)

    def array(self, ctype: str, name: str, start: str, task: Scope) -> str:
        """Declare an array with one element for each lane, and return the lane's element."""
        task.lines.append(f"{ctype} {name}[LANES];")
        if start:
            task.lines.append(f"for (int64_t l = 0; l < LANES; ++l) {name}[l] = {start};")
        return f"{name}[l - lo]"

    def column_pass(self, level: int, task: Scope) -> None:
        """Add the passes over columns that complete every reduction of this level, one for all with the same guards."""
        found = self.reductions(level)
        for guards in dict.fromkeys(v.guards for v in found):
            self.guarded_pass([v for v in found if v.guards == guards], guards, task)

    def guarded_pass(self, found: list[ir.Reduce], guards: tuple[ir.Index, ...], task: Scope) -> None:
        """Add one pass over columns for these reductions, at the places where the guards hold."""
        roots = [v.arg for v in found] + [g for v in found for g in v.guards]
        self.hoist(roots, task)
        same = Scope(task) if guards else self.same_for_lanes(roots, task)
        inner = Scope(same)
        self.lane_scans(roots, task, inner)
        parts: list[tuple[str, str, str]] = []  # float partial sums with their totals
        for v in found:
            name, ctype = self.printer.name("acc"), CTYPES[v.dtype]
            long = accumulator(v) == "double" and any(loop.count > COLUMN_BLOCK for loop in self.nest.reduced)
            cell = self.array(
                accumulator(v) if long or accumulator(v) != "double" else ctype, name, start_of(v.kind, v.dtype), task
            )
            task.known[v] = f"{ctype}({cell})" if long else cell
            if long:
                total, cell = cell, self.array(ctype, f"{name}_part", "", task)
                parts.append((cell, start_of(v.kind, v.dtype), C[v.kind].step.format(a=total, v=cell)))
            inner.lines.append(C[v.kind].step.format(a=cell, v=self.printer.emit(v.arg, inner)))
        task.lines += self.column_pass_loop([*same.lines, *self.guarded(inner.lines, guards)], parts)

    def guarded(self, body: list[str], guards: tuple[ir.Index, ...]) -> list[str]:
        """Return the lane loop over only those lanes for which the guards hold."""
        nest = self.nest
        lines: list[str] = []
        bounds = ("lo", "hi")
        for g in guards:
            assert g.limit is not None
            limit = nest.names.product(g.limit)
            step = [c for atom, c in g.form.terms if nest.lane and atom.leaves() == nest.lane.leaves]
            if not step:
                lines.append(f"if (!{self.printer.compute(g, Scope())}) continue;")
                continue
            terms = tuple(t for t in g.form.terms if nest.lane and t[0].leaves() != nest.lane.leaves)
            rest = ir.Form(terms, g.form.offset, g.form.sizes)
            lines += [
                f"const int64_t at = {nest.position(rest)};",
                f"const int64_t first = std::max(lo, at < 0 ? (-at + {step[0] - 1}) / {step[0]} : 0);",
                f"const int64_t last = std::min(hi, at < {limit} ? ({limit} - at + {step[0] - 1}) / {step[0]} : 0);",
            ]
            bounds = ("first", "last")
        return [*lines, *self.lane_loop(body, bounds)]

    def column_pass_loop(self, body: list[str], parts: list[tuple[str, str, str]]) -> list[str]:
        """Return all reduced loops; long sums run in blocks of rows, whose float sums join the doubles."""
        if not parts:
            return around(self.nest.reduced, body)
        *outer, last = self.nest.reduced
        clear = self.lane_loop([f"{cell} = {start};" for cell, start, _ in parts])
        join = self.lane_loop([step for *_, step in parts])
        rows = [f"for (int64_t {last.var} = from; {last.var} < to; ++{last.var}) {{", *indent(body), "}"]
        block = [
            f"for (int64_t from = 0; from < {last.size}; from += {COLUMN_BLOCK}) {{",
            f"  const int64_t to = std::min<int64_t>(from + {COLUMN_BLOCK}, {last.size});",
            *indent([*clear, *rows, *join]),
            "}",
        ]
        return around(outer, block)

    def hoist(self, roots: list[ir.Value], task: Scope) -> None:
        """Store column values that rest on a reduction and do not change along the reduced loops in arrays."""
        wanted = [v for v in self.frontier(roots) if self.level[v] and not isinstance(v, ir.Reduce)]
        if not wanted:
            return
        cells = [(v, self.array(CTYPES[v.dtype], self.printer.name("c"), "", task)) for v in wanted]
        inner = Scope(task)
        for v, cell in cells:
            inner.lines.append(f"{cell} = {self.printer.emit(v, inner)};")
        task.lines += self.lane_loop(inner.lines)
        task.known |= {v: cell for v, cell in cells}

    def lane_scans(self, roots: list[ir.Value], task: Scope, inner: Scope) -> None:
        """Add running totals of columns: an array of accumulators, and the step inside the loop."""
        found = [v for v in ir.walk(*roots, enter=lambda v: not isinstance(v, ir.Reduce)) if isinstance(v, ir.Scan)]
        for v in found:
            cell = self.array(accumulator(v), self.printer.name("s"), start_of(v.kind, v.dtype), task)
            inner.lines.append(C[v.kind].step.format(a=cell, v=self.printer.emit(v.arg, inner)))
            inner.known[v] = self.printer.assign(v, f"{CTYPES[v.dtype]}({cell})", inner)
