"""CUDA for rows that no block can hold: a team of blocks shares a row, so that it is read once however long it is.

Comes in: a region of long rows that are swept more than once. Goes out: a kernel for it in place of the wide one, and
the C condition under which it may run. Every thread keeps its elements in registers; the blocks of a team exchange what
they reduced through global memory. That takes all teams resident at once, a cooperative launch. Tried on an H200 and
slower: clusters with distributed shared memory, asynchronous copies of the next row, a second read from L2.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from rag_kernels.offline import ir
from rag_kernels.offline.cuda_region import CudaParameters
from rag_kernels.offline.cuda_wide import KEPT_ELEMENTS, WideRegion, find_quads
from rag_kernels.offline.expressions import Scope
from rag_kernels.offline.function import Function, Sizes
from rag_kernels.offline.one_pass import EXPONENTIAL, PAIR, SQUARE, WIDE
from rag_kernels.offline.passes import indent
from rag_kernels.offline.regions import Region

KEPT = 32  # floats that a thread keeps: four blocks of 256 threads fit on a processor with 64 registers a thread
LONGEST = 64 * 256 * KEPT  # elements of a row: with fewer teams than eight, memory idles while all wait


@dataclass(slots=True)
class SpreadRegion(WideRegion):
    """Loops over rows by team; `ITEMS` vectors of a row are a thread's own."""

    joined: int = 0  # reductions that teams exchange
    known_powers: dict[object, str] = field(default_factory=dict)  # of exponentials that stand in a load's place
    finish: list[str] = field(default_factory=list)  # from a thread's fp32 sums to what teams exchange

    def condition(self, name: str) -> str:
        wide = WideRegion.condition(self, name)
        fits = f"fits({name}<{self.items()}, false>, small({self.quads}), {self.items()})"
        return f"{wide} && {fits}" if wide else fits

    def row(self) -> list[str]:
        passes = self.passes("row", "true", "team.part() == 0 && threadIdx.x == 0")
        kept = self.kept_names()
        body = [*self.indices(self.nest.outer, "t"), *self.keep(kept), *passes]
        outer = self.total(self.nest.outer)
        return [
            "int met = 0;",
            "const int first = int(team.part()) * ITEMS * SPREAD_THREADS + threadIdx.x;",
            f"const int64_t left = {self.quads} > first ? ({self.quads} - first - 1) / SPREAD_THREADS + 1 : 0;",
            f"const int own = FULL || left > ITEMS ? ITEMS : int(left), last = int({self.quads}) - 1;",
            f"for (int64_t t = team.number(); t < {outer}; t += team.count) {{",
            *indent(self.loaded(body, set(kept))),
            "}",
        ]

    @property
    def mine(self) -> str:
        return "first + j * SPREAD_THREADS"

    @property
    def is_mine(self) -> str:
        return "FULL || j < own"

    def kept_or(self, name: str, load: str) -> str:
        return f"{name}_kept[j]"

    def keep(self, names: list[str]) -> list[str]:
        """All loads at once, without a condition: where a row has no more, its last quad again."""
        return [
            *(f"{self.vector} {n}_kept[ITEMS];" for n in names),
            "#pragma unroll",
            "for (int j = 0; j < ITEMS; ++j) {",
            f"  const int at = {self.mine}, k = FULL || at < last ? at : last;",
            *indent(self.indices([*self.nest.reduced[:-1], self.quad], "k")),
            *(f"  {n}_kept[j] = *reinterpret_cast<const {self.vector}*>({self.addresses[n]});" for n in names),
            "}",
        ]

    def each_quad(self, sweep: str) -> list[str]:
        return self.each_item([f"if ({self.is_mine}) {sweep}(k, j);"])

    def comes_back(self) -> bool:
        """Whether a row is needed again once something of it is known: sums alone gain nothing by teams (0.988 ms for
        0.985 on an H200, group norm)."""
        return self.top + bool(self.swept()) > 1 or any(v.kind == PAIR for v in self.reductions(1))

    def reduce_pass(self, level: int, kind: str, active: str, scope: Scope) -> None:
        """First what a thread needs to know of its own elements, so that it can sum them in fp32."""
        for v in self.reductions(level):
            if v.kind == PAIR:
                top = self.look(v.arg, "top", "-INFINITY", "{a} = {v} > {a} ? {v} : {a};", scope)
                scope.lines.append(f"{top} = row_reduce({top}, Max(), -INFINITY);")
                scope.lines.append(f"const float {top}_finite = {top} == -INFINITY ? 0.0f : {top};")
            elif isinstance(v.arg, ir.Op) and v.arg.template == SQUARE:
                name = self.look(v.arg.args[0], "about", "0.0f", "{a} += {v};", scope)
                scope.lines.append(f"{name} /= own ? {self.width} * own : 1;  // the mean of what this thread has")
                scope.lines.append(f"float {name}_sum = 0, {name}_squares = 0;")
        WideRegion.reduce_pass(self, level, kind, active, scope)
        for v in self.reductions(level):
            for power in self.powers(v):
                factor, top = self.printer.name("factor"), scope.known[id(v.arg), "top"]
                scope.lines.append(f"const float {factor} = expf({top}_finite - {scope.known[id(v)]}.top);")
                self.known_powers[id(power)] = f"({self.element_of(v.arg)} * {factor})"

    def powers(self, v: ir.Reduce) -> list[ir.Op]:
        """exp(x - top) of a softmax, where nothing else is done with a loaded x after its sum."""
        if v.kind != PAIR or self.element_of(v.arg) is None or self.top > 1:
            return []
        after = list(ir.walk(*self.values, enter=lambda v: not isinstance(v, ir.Reduce)))
        same = self.element_of(v.arg)
        users = [o for o in after if any(self.element_of(child) == same for child in ir.children(o))]
        powers = [o for o in users if isinstance(o, ir.Op) and o.template == EXPONENTIAL and is_top(o.args[1], v)]
        return powers if len(powers) == len([o for o in users if o is not v]) else []

    def element_of(self, v: ir.Value) -> str | None:
        """What a load that a thread keeps is called inside a sweep."""
        if not isinstance(v, ir.Load):
            return None
        name = self.loads.get(f"{self.printer.pointers[v.buffer]}[{self.nest.offset(self.nest.accesses[id(v)])}]")
        return f"(&{name}.x)[u]" if name else None

    def open_inner(self, scope: Scope) -> Scope:
        inner = WideRegion.open_inner(self, scope)
        inner.known |= self.known_powers
        return inner

    def look(self, x: ir.Value, word: str, start: str, step: str, scope: Scope) -> str:
        """One sweep over what a thread keeps; the variable that it fills is known by the value and the word."""
        self.settle([x], scope)
        inner, name = self.open_inner(scope), self.printer.name(word)
        text = self.printer.emit(x, inner)
        scope.lines.append(f"float {name} = {start};")
        lines = [*inner.lines, step.format(a=name, v=text)]
        scope.lines += self.sweep(lines, [], "row", "true", scanning=False)
        scope.known[id(x), word] = name
        return name

    def step(self, v: ir.Reduce, name: str, wide: str, scope: Scope, block: Scope) -> str:
        """Sums run in fp32 over the few elements of a thread: of squares about a mean of its own, so that no digits
        are lost, and of exponentials below a maximum of its own."""
        template = v.arg.template if isinstance(v.arg, ir.Op) else ""
        about = scope.find((id(v.arg.args[0]), "about")) if isinstance(v.arg, ir.Op) and v.arg.args else None
        if v.kind == PAIR:
            return self.step_of_pair(v, name, scope, block)
        if about and v.kind == "sum" and isinstance(v.arg, ir.Op) and template in (WIDE, SQUARE):
            own, text = f"double({self.width} * own)", self.printer.emit(v.arg.args[0], block)
            if template == WIDE:
                self.finish.append(f"{name} = {about}_sum + {own} * {about};")
                return f"{about}_sum += {text} - {about};"
            self.finish.append(f"{name} = {about}_squares + {about} * (2.0 * {about}_sum + {own} * {about});")
            return f"{about}_squares += ({text} - {about}) * ({text} - {about});"
        if wide == "double" and v.kind == "sum" and v.dtype == "float32":
            scope.lines.append(f"float {name}_f = 0;")
            self.finish.append(f"{name} = {name}_f;")
            return f"{name}_f += {self.printer.emit(v.arg, block)};"
        return WideRegion.step(self, v, name, wide, scope, block)

    def step_of_pair(self, v: ir.Reduce, name: str, scope: Scope, block: Scope) -> str:
        top = scope.find((id(v.arg), "top"))
        scope.lines.append(f"float {name}_f = 0;")
        self.finish.append(f"{name} = MaxSum{{{top}, row_reduce(double({name}_f), Sum(), 0.0)}};")
        text, power = self.printer.emit(v.arg, block), self.printer.name("power")
        block.lines.append(f"const float {power} = expf({text} - {top}_finite);")
        if self.powers(v):
            block.lines.append(f"{text.replace('.x', '_kept[j].x')} = {power};  // in its place")
        return f"{name}_f += {power};"

    def join(self, found: list[tuple[str, str, str]], kind: str) -> list[str]:
        """Every block shows what it has, all of the team meet, and each combines what all have shown."""
        first = self.joined
        self.joined += len(found)
        lines, self.finish = self.finish, []
        done = {line.split(" ")[0] for line in lines if "row_reduce" in line}
        lines += [f"{name} = row_reduce({name}, {f}, {start});" for name, f, start in found if name not in done]
        lines += [f"team.show(met, {first + i}, {name});" for i, (name, _, _) in enumerate(found)]
        lines.append("team.meet(met);")
        lines += [f"{name} = team.look(met, {first + i}, {f}, {start});" for i, (name, f, start) in enumerate(found)]
        return [*lines, *(f"{name} = team.agree({name}, {f}, {start});" for name, f, start in found), "++met;"]

    @property
    def template(self) -> str:
        return "template <int ITEMS, bool FULL> "

    @property
    def bounds(self) -> str:
        return "__launch_bounds__(SPREAD_THREADS, 4) "

    def parameters_of(self, body: str, f: Function) -> tuple[list[str], list[str]]:
        parameters, arguments = WideRegion.parameters_of(self, body, f)
        return ["Team team", *parameters], arguments

    def launch(self, name: str, arguments: list[str]) -> list[str]:
        rows, items = f"small({self.total(self.nest.outer)})", self.items()
        plan = f"{rows}, small({self.quads}), {items}, {self.joined}, stream, {', '.join(arguments)});"
        return [
            f"if (({self.quads}) % ({items} * SPREAD_THREADS) == 0) spread({name}<{items}, true>, {plan}",
            f"else spread({name}<{items}, false>, {plan}",
        ]

    def items(self) -> int:
        return max(1, KEPT // (self.width * max(1, len(self.kept_names()))))


def spread_region(region: Region, f: Function, sizes: Sizes, parameters: CudaParameters) -> SpreadRegion | None:
    """The kernel of teams, where a row is long, is swept more than once, and can be kept."""
    if not parameters.spread:
        return None
    found = SpreadRegion.of(region, f, sizes, parameters)
    rows = found.nest.schedule == "row" and not found.has_scan() and found.top > 0
    if not rows or not KEPT_ELEMENTS < found.reduced_count() <= LONGEST or not found.comes_back():
        return None
    found.width = 4 if found.nest.reduced[-1].count % 4 == 0 and parameters.vector > 1 else 1
    if not find_quads(found):
        return None
    found.row()  # counts the uses
    kept = found.kept_names()
    longest = LONGEST // max(1, len(kept))
    if not kept or found.reduced_count() > longest:
        return None
    fresh = SpreadRegion.of(region, f, sizes, parameters)
    fresh.width = found.width
    find_quads(fresh)
    return fresh


def is_top(v: ir.Value, pair: ir.Reduce) -> bool:
    return isinstance(v, ir.Op) and v.template == "{0}.top" and v.args[0] is pair


def uses_teams(text: str) -> bool:
    return bool(re.search(r"\bTeam team\b", text))
