"""Contractions: regions that sum a product of two factors, so that they can run in tiles as a matrix product does.

Comes in: a region. Goes out: a `Contraction` with its nest, or None when the region is of another kind. Loops of the
left factor alone are rows, those of the right alone are columns (where the output is contiguous), those of both are
batches, the summed ones are the depth; a convolution has its filters as rows and its places as columns. Transposed
convolutions with a stride run phase by phase: outputs of one phase use the same window positions. Prints the pieces of
C that both languages share; `cpp/contraction.py` and `cuda/gemm.py` print the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from rag_kernels.offline.codegen.loop_nest import Loop, Names, Nest, access_of, loop_over, merge, store_access
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.fusion.loops import key_of
from rag_kernels.offline.fusion.regions import Region
from rag_kernels.offline.fusion.sums.products import factors_of, shared_factor, tile_of
from rag_kernels.offline.fusion.tiles.product_statistics import grouped_product
from rag_kernels.offline.ir import values as ir


@dataclass(frozen=True, slots=True)
class Phase:
    """A strided dimension of a transposed convolution: output loop, window loop, and what each phase uses.

    Phase p has the outputs p, p + stride, ... and the window positions first[p], first[p] + step, ... (taps[p]).
    """

    output: ir.Atom
    window: ir.Atom | None
    stride: int
    step: int
    first: tuple[int, ...]
    taps: tuple[int, ...]


@dataclass(slots=True)
class Side:
    """One factor: its value, the guards that it needs, and the loops of its lanes (rows or columns)."""

    value: ir.Value
    guards: tuple[ir.Index, ...]
    lanes: list[Loop]
    loads: list[ir.Load] = field(default_factory=list)


@dataclass(slots=True)
class Contraction:
    """A region as a matrix product: the loops of its batches, rows, columns and depth, outermost first."""

    nest: Nest
    total: ir.Reduce
    batches: list[Loop]
    left: Side
    right: Side
    depth: list[Loop]
    phases: list[Phase]
    other: ir.Reduce | None = None  # a second sum over the same loops: of the left factor and of `second`
    second: Side | None = None
    together: bool = False  # phases have as many outputs each as the first, of which some may lie beyond the end

    @property
    def totals(self) -> list[ir.Reduce]:
        """Return the sums: one or two."""
        return [self.total, *([self.other] if self.other else [])]

    @property
    def grouped(self) -> int:
        """Return how many columns a group has of which what they come to is stored, those of the last loop; 0: none."""
        last = self.columns[-1]
        return last.count if last.leaves[-1] in self.nest.region.reduced else 0

    @property
    def rows(self) -> list[Loop]:
        return self.left.lanes

    @property
    def columns(self) -> list[Loop]:
        return self.right.lanes

    def phase_of(self, loop: Loop) -> tuple[int, Phase] | None:
        """Return the number and the phase that a loop takes part in, or None."""
        for number, phase in enumerate(self.phases):
            if loop.leaves == (phase.output,) or loop.leaves == (phase.window,):
                return number, phase
        return None

    def count(self, loops: list[Loop]) -> int:
        """Return the number of steps that these loops have together for this problem."""
        total = 1
        for loop in loops:
            total *= loop.count
        return total

    def extent(self, loop: Loop) -> str:
        """Return how many steps a loop has, as C: within its phase, if it has one."""
        found = self.phase_of(loop)
        if not found:
            return f"({loop.size})" if " " in loop.size else loop.size
        number, phase = found
        if loop.leaves == (phase.output,):
            before = "" if self.together else f" - phase{number}"
            return f"(({loop.size}{before} + {phase.stride - 1}) / {phase.stride})"
        return f"taps{number}"

    def extents(self, loops: list[Loop]) -> str:
        """Return how many steps these loops have together, as C."""
        return " * ".join(self.extent(loop) for loop in loops) or "1"

    def variable(self, loop: Loop, step: str) -> str:
        """Return the loop variable at a step, as C."""
        found = self.phase_of(loop)
        if not found:
            return step
        number, phase = found
        if loop.leaves == (phase.output,):
            return f"{step} * {phase.stride} + phase{number}"
        return f"first{number} + {step} * {phase.step}"

    def unflatten(self, loops: list[Loop], flat: str, kind: str) -> list[str]:
        """Return statements that turn a flat index into the variables of these loops (outermost first)."""
        lines, rest = [], flat
        for loop in reversed(loops[1:]):
            size = self.extent(loop)
            lines.append(f"const {kind} {loop.var} = {self.variable(loop, f'({rest} % {size})')};")
            rest = f"({rest} / {size})"
        return [*lines, *(f"const {kind} {loop.var} = {self.variable(loop, rest)};" for loop in loops[:1])]

    def phase_tables(self, declared: str) -> list[str]:
        """Return each phase's first window position and number of positions, to variables that are `declared` so."""
        lines = []
        for n, phase in enumerate(self.phases):
            for name, table in (("first", phase.first), ("taps", phase.taps)):
                choice = "".join(f"phase{n} == {p} ? {v} : " for p, v in enumerate(table[:-1])) + str(table[-1])
                lines.append(f"{declared}{name}{n} = {choice};")
        return lines

    def factor(self, side: Side, printer: Printer) -> tuple[list[str], str]:
        """Return statements that compute an element of a factor, and its name; guards are left to the caller."""
        scope = Scope()
        text = printer.emit(side.value, scope)
        return scope.lines, text

    def note(self) -> str:
        """Return the comment that describes the product's sizes."""
        stores = ", ".join(self.nest.region.stores)
        sizes = [" * ".join(loop.size for loop in loops) or "1" for loops in (self.rows, self.columns, self.depth)]
        times = " * ".join(loop.size for loop in self.batches)
        return f"// {stores}: {times + ' ' if times else ''}products of {sizes[0]} x {sizes[1]} over {sizes[2]}"


def sums_of(region: Region) -> list[ir.Reduce]:
    """Return the sums of products of a region: one, or two with a factor in common; none where it has anything else."""
    every = list(ir.walk(*region.stores.values()))
    found = [v for v in every if isinstance(v, ir.Reduce) and not grouped_product(v)]
    inside = {a for v in region.stores.values() for g in v.dims for a in ir.leaves(g)} & set(region.reduced)
    if inside or any(isinstance(v, ir.Scan) for v in every) or not all(tile_of(v) for v in found):
        return []
    pair = len(found) == 2 and shared_factor([*found], next(iter(region.stores.values())))
    return found if len(found) == 1 or pair else []


def find_contraction(region: Region, names: Names) -> Contraction | None:
    """Return the region as a contraction, or None if it is no product that can run in tiles."""
    sums = sums_of(region)
    found = [factors for factors in map(factors_of, sums) if factors]
    if not sums or len(found) < len(sums):
        return None
    total, (left, right) = sums[0], found[0]
    outer, reduced = map(set, key_of(total))
    on_left = ir.tree_atoms(left) & outer
    on_right = ir.tree_atoms(right) & outer
    inner = innermost(region)
    if inner is None or outer - on_left - on_right or inner in on_left & on_right:
        return None
    if inner in on_left:
        left, right, on_left, on_right = right, left, on_right, on_left
    rows, columns, batches = on_left - on_right, on_right - on_left, on_left & on_right
    guards_left = [g for g in total.guards if atoms_of(g) <= ir.tree_atoms(left)]
    guards_right = [g for g in total.guards if g not in guards_left]
    if any(not atoms_of(g) <= ir.tree_atoms(right) for g in guards_right):
        return None
    sides = [Side(left, tuple(guards_left), []), Side(right, tuple(guards_right), [])]
    if len(sums) == 2:
        common = shared_factor([*sums], next(iter(region.stores.values())))
        assert common
        if left is not found[0][common[0]]:
            return None
        sides.append(Side(found[1][1 - common[1]], (), []))
    return arranged(region, names, sums, sides, (rows, columns, batches, reduced))


def atoms_of(guard: ir.Index) -> set[ir.Atom]:
    """Return the loops that a guard depends on."""
    return set(ir.own_atoms(guard))


def innermost(region: Region) -> ir.Atom | None:
    """Return the loop along which the outputs are contiguous, or None if they differ in that."""
    last = set()
    for value in region.stores.values():
        group = ir.leaves(a for g in value.dims for a in g)
        last.add(group[-1] if group else None)
    return last.pop() if len(last) == 1 else None


def arranged(
    region: Region, names: Names, sums: list[ir.Reduce], sides: list[Side], loops: tuple[set[ir.Atom], ...]
) -> Contraction:
    """Return the contraction with loops in the order of memory, merged where every access allows it.

    `loops` has the atoms of rows, columns, batches and depth.
    """
    loads = [v for v in ir.walk(*region.stores.values()) if isinstance(v, ir.Load)]
    accesses = {v: access_of(v.stored, v.index, names) for v in loads}
    stores = {buffer: store_access(region, buffer, names) for buffer in region.stores}
    every = [*stores.values(), *accesses.values()]
    rows, columns, batches, reduced = loops
    pinned = {leaf for v in ir.walk(*region.stores.values()) if isinstance(v, ir.Index) for leaf in ir.own_atoms(v)}
    out = next(iter(stores.values()))
    side = [[v for v in ir.walk(s.value) if isinstance(v, ir.Load)] for s in sides]

    def made(atoms: set[ir.Atom], stride: dict[ir.Atom, float], letter: str) -> list[Loop]:
        order = sorted(atoms, key=lambda a: (-abs(stride.get(a, 0)), a.serial))
        return [loop_over(g, f"{letter}{k}", names) for k, g in enumerate(merge(order, every, pinned, names))]

    across = {a: out.stride(a) for a in rows | columns | batches}
    along = {a: max((accesses[v].stride(a) for v in side[0]), default=0) for a in reduced}
    sides[0].lanes, sides[1].lanes = made(rows, across, "i"), made(columns, across, "j")
    for one, read in zip(sides, side, strict=True):
        one.lanes, one.loads = one.lanes or sides[1].lanes, read
    outer, depth = made(batches, across, "b"), made(reduced, along, "r")
    nest = Nest(region, "product", [*outer, *sides[0].lanes, *sides[1].lanes], depth, None, names, accesses, stores)
    every_loop = {loop.leaves for loop in [*nest.outer, *depth]}
    phases = [p for p in map(phase, sums[0].guards) if p and (p.output,) in every_loop]
    phases = [p for p in phases if p.window is None or (p.window,) in every_loop]
    pair = (sums[1], sides[2]) if len(sums) == 2 else (None, None)
    return Contraction(nest, sums[0], outer, sides[0], sides[1], depth, phases, *pair)


def phase(guard: ir.Index) -> Phase | None:
    """Return the phases of a guard `(o + pad - k * dilation) % stride == 0`, or None for another guard."""
    if guard.every == 1:
        return None
    terms = [(leaf, factor) for atom, factor in guard.form.terms for leaf in atom.leaves()]
    outputs = [a for a, factor in terms if factor == 1]
    windows = [(a, -factor) for a, factor in terms if factor < 0]
    if len(outputs) != 1 or len(windows) + 1 != len(terms) or len(terms) != len(guard.form.terms):
        return None
    window, dilation = windows[0] if windows else (None, 1)
    stride, count = guard.every, window.size if window else 1
    hits = [[k for k in range(count) if (p + guard.form.offset - k * dilation) % stride == 0] for p in range(stride)]
    step = next((h[1] - h[0] for h in hits if len(h) > 1), 1)
    return Phase(outputs[0], window, stride, step, tuple(h[0] if h else 0 for h in hits), tuple(map(len, hits)))


def guard_text(contraction: Contraction, guard: ir.Index, printer: Printer) -> str:
    """Return the guard in C; within a phase every position is a multiple of the stride already."""
    if guard.every > 1 and any(
        p.window and set(ir.own_atoms(guard)) == {p.output, p.window} for p in contraction.phases
    ):
        assert guard.limit is not None
        place, size = contraction.nest.position(guard.form), contraction.nest.names.product(guard.limit)
        return f"{printer.unsigned}({place}) < {printer.unsigned}({size}) * {guard.every}"
    return printer.emit(guard, Scope())
