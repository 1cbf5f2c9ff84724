"""Factors of a contraction as the copy engine (TMA) of Hopper reads them: matrices of lanes and terms, by batches.

Comes in: a Contraction, one of its factors and the tensor that this reads. Goes out: a `Matrix`, or None where one
index cannot run through its lanes or its terms.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.codegen.contraction import Contraction, Side
from rag_kernels.offline.codegen.loop_nest import Access, Loop, Names, Poly, text_of, times
from rag_kernels.offline.codegen.statements import Printer, Scope
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.patterns import strip


@dataclass(frozen=True, slots=True)
class Matrix:
    """A factor as the copy engine reads it: its element type, where it begins, and its dimensions, innermost first.

    A dimension has the C text of its size, its step in elements, and what it is indexed by: `lane`, `term`, the
    variable of a batch, or `place0`... for one of the `places` that are computed for each batch.
    """

    load: ir.Load
    start: Poly
    sizes: tuple[str, ...]
    steps: tuple[Poly, ...]
    by: tuple[str, ...]
    places: tuple[ir.Value, ...] = ()

    @property
    def lanes_inside(self) -> bool:
        """Return whether lanes, not terms, lie side by side."""
        return self.by[0] == "lane"

    def turned(self) -> Matrix:
        """Return the factor with its first two dimensions exchanged; only a copy of it can be read so."""
        sizes, steps, by = ((b, a, *rest) for a, b, *rest in (self.sizes, self.steps, self.by))
        return Matrix(self.load, self.start, tuple(sizes), tuple(steps), tuple(by), self.places)

    def place_lines(self, name: str, printer: Printer) -> list[str]:
        """Return the statements that compute the places of a batch, as `NAME_place0`..."""
        scope = Scope()
        texts = [printer.emit(place, scope) for place in self.places]
        return [*scope.lines, *(f"const int {name}_place{n} = int({text});" for n, text in enumerate(texts))]


def plain_load(side: Side) -> ir.Load | None:
    """Return the tensor that a factor is, or None where it is computed or may lie outside."""
    value = strip(side.value)
    return value if isinstance(value, ir.Load) and not side.guards else None


def common_step(access: Access, loops: list[Loop], sizes: Names) -> Poly | None:
    """Return the step of the last of these loops if one index can run through all of them, or None."""
    last: Poly | None = None
    names: tuple[str, ...] = ()
    for loop in reversed(loops):
        step = access.steps.get(loop.leaves[-1], {})
        if last is not None and step != times(last, names):
            return None
        last = step if last is None else last
        names = (*names, *(sizes[leaf] for leaf in loop.leaves))
    return last


def matrix_of(contraction: Contraction, side: Side) -> Matrix | None:
    """Return a factor as the copy engine reads it, or None if it cannot."""
    load = plain_load(side)
    return matrix_read(contraction, side, load) if load else None


def matrix_read(contraction: Contraction, side: Side, load: ir.Load, within: int = 0) -> Matrix | None:
    """Return a tensor that a factor reads as a matrix of lanes and terms, or None if it is none.

    Terms of the last `within` loops of the depth share an element.
    """
    if contraction.phases:
        return None
    access = contraction.nest.accesses[load]
    depth = contraction.depth[: len(contraction.depth) - within]
    lane, term = (common_step(access, loops, contraction.nest.names) for loops in (side.lanes, depth))
    batches = [b for b in contraction.batches if access.steps.get(b.leaves[-1])]
    inner = [step for step in (lane, term) if step == {(): 1}]
    of_batch = {leaf for batch in contraction.batches for leaf in batch.leaves}
    gathered = [(d, place) for d, place in enumerate(load.index) if isinstance(place, ir.Value)]
    if not lane or not term or len(inner) != 1 or len(batches) + len(gathered) > 3:
        return None
    if any(not ir.tree_atoms(place) <= of_batch for _, place in gathered):
        return None
    found = [("lane", side.lanes, lane), ("term", depth, term)]
    found.sort(key=lambda item: item[2] != {(): 1})
    sizes = [contraction.extents(loops) for _, loops, _ in found] + [contraction.extent(b) for b in batches]
    steps = [step for _, _, step in found] + [access.steps[b.leaves[-1]] for b in batches]
    by = [name for name, _, _ in found] + [b.var for b in batches] + [f"place{n}" for n in range(len(gathered))]
    sizes += [contraction.nest.names.product(ir.leaves(load.stored[d])) for d, _ in gathered]
    steps += [step for _, step in access.values]
    places = tuple(place for _, place in gathered)
    return Matrix(load, access.constant, tuple(sizes), tuple(steps), tuple(by), places)


def start_of_matrix(matrix: Matrix, pointers: dict[str, str]) -> str:
    """Return the address at which a factor begins, as C."""
    place = pointers[matrix.load.buffer]
    return f"{place} + {text_of(matrix.start)}" if matrix.start else place
