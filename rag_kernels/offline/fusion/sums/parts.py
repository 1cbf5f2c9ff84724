"""When a reduction of few long rows or columns runs in parts, and in how many.

Comes in: a reduction, and from which sizes on the backend wants parts. Goes out: the number of parts, the loops that
make them, and whether neighbours in memory belong to other sums. `planner.py` makes the parts regions.
"""

from __future__ import annotations

from dataclasses import dataclass

from rag_kernels.offline.fusion.loops import key_of, loops_of
from rag_kernels.offline.fusion.sums.products import is_half, tile_of
from rag_kernels.offline.ir import values as ir

LEAST_PART, FULL_COLUMNS = 256, 1 << 14  # elements of a part of a column; columns by which a device is busy


@dataclass(frozen=True, slots=True)
class Split:
    """When a reduction is split in two: rows fewer than `rows` and longer than `length`, and products of few tiles."""

    rows: int
    length: int = 1 << 15
    whole: int = 0  # rows that take another pass stay whole, with no more elements than this in all that is read
    columns: int = 0  # columns fewer than this, and longer than `column`, are split
    column: int = 2048
    tiles: int = 0  # of a product, at which the device is full; 0 leaves products whole
    edge: int = 64  # rows and columns of such a tile
    depth: int = 2048  # shortest depth that is split
    pairs: bool = False  # two products of one factor may be one nest
    scans: bool = True  # running sums; not where blocks share a row of scans alone
    costly: int = 1 << 16  # elements of a region for which costly values used often have a kernel of their own


def is_column(value: ir.Reduce) -> bool:
    """Return whether neighbours in memory belong to other sums: the innermost loop of half of what is read is not
    summed.

    What all sums read alike, a factor for each of their elements, may lie as it does; where nothing else is summed
    they are sums over pairs, whose other half is each sum's own. A convolution's window moves along with what it makes.
    A sum of all there is has no others beside it, whatever its elements are sums of themselves. A product lies as its
    results do.
    """
    if not any(ir.leaves(group) for group in value.dims):
        return False
    over = set(ir.leaves(value.over))
    inside = list(ir.walk(value.arg, enter=lambda v: not is_product(v)))
    taps = {a for v in inside if isinstance(v, ir.Reduce) for a in ir.leaves(v.over)} - over
    read = [v for v in inside if isinstance(v, ir.Load) or is_product(v)]
    summed = [v for v in read if atoms_of(v) & over]
    own = [v for v in summed if not atoms_of(v) <= over]
    if not own:
        return any(atoms_of(v) for v in read if v not in summed)
    last = [last_of(v, taps) for v in own]
    return None not in last and 2 * sum(atom not in over for atom in last) >= len(last)


def is_product(value: ir.Value) -> bool:
    """Return whether a value is a product in tiles, which is stored before anything sums it."""
    return isinstance(value, ir.Reduce) and bool(tile_of(value))


def atoms_of(read: ir.Value) -> set[ir.Atom]:
    """Return the loops that say which element of a tensor, or of a product, is read."""
    return set(key_of(read)[0]) if isinstance(read, ir.Reduce) else set(ir.tree_atoms(read))


def last_of(read: ir.Value, taps: set[ir.Atom]) -> ir.Atom | None:
    """Return the loop along which what is read lies side by side; None where its place is computed."""
    if not isinstance(read, ir.Load):
        return loops_of(read)[-1]
    form = next((f for f in reversed(read.index) if not isinstance(f, ir.Form) or f.terms), None)
    return innermost_of(form, taps) if isinstance(form, ir.Form) else None


def innermost_of(form: ir.Form, taps: set[ir.Atom]) -> ir.Atom:
    """Return the innermost loop of an index, one that a sum inside consumes only if there is no other."""
    every = [leaf for atom, _ in form.terms for leaf in atom.leaves()]
    return next((leaf for leaf in reversed(every) if leaf not in taps), every[-1])


def parts_wanted(split: Split, value: ir.Reduce, *, whole: bool) -> int:
    """Return in how many parts a reduction should run so that it fills the device; `whole`: some step wants it so."""
    outer, reduced = key_of(value)
    length, tile = ir.size_of(reduced), tile_of(value)
    if not tile:
        column = is_column(value)
        if whole and not column:
            return 1
        rows = ir.size_of(outer)
        if rows < split.columns and length >= split.column and column:
            most = max(2 * length // split.column, min(length // LEAST_PART, FULL_COLUMNS // rows))
            return min(split.columns // rows, most)
        return 1 if rows >= split.rows or length < split.length else split.rows // max(1, rows)
    if is_half(value):
        return 1  # its kernel splits the depth itself
    batches, rows, columns = tile
    tiles = batches * -(-rows // split.edge) * -(-columns // split.edge)
    return 1 if 2 * tiles > split.tiles or length < split.depth else split.tiles // tiles


def parts_of(atoms: tuple[ir.Atom, ...], wanted: int) -> tuple[ir.Atom, ...]:
    """Return the outermost loops that give about `wanted` parts; one is split where that is exact."""
    parts: list[ir.Atom] = []
    for atom in atoms[:-1]:
        if ir.size_of(parts) * atom.size > 64 * wanted:
            break
        parts.append(atom)
        if ir.size_of(parts) >= wanted:
            return tuple(parts)
    atom = atoms[len(parts)]
    need = -(-wanted // ir.size_of(parts))
    divisors = [d for d in range(need, min(16 * need, atom.size // 2) + 1) if atom.size % d == 0]
    if not divisors:
        return tuple(parts)
    atom.split(divisors[0], fixed=True)
    return (*parts, atom.leaves()[0])
