"""From stored values to regions: which values share a loop nest, and what is stored in between.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps with every `Stored` replaced by `Region`s. A
reduction over other loops than its region's is stored first, by a region of its own. Few long rows are split: partial
results first, then the rest. Knows nothing of languages.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeGuard

from rag_kernels.eval.records import TensorSpec
from rag_kernels.offline.fusion.loops import Key, key_of, ordered, reductions
from rag_kernels.offline.fusion.products import is_half, shared_factor, tile_of
from rag_kernels.offline.fusion.regions import (
    SCANNED_PART,
    AttentionRegion,
    OrderRegion,
    OwnText,
    Region,
    ScatterRegion,
    SegmentRegion,
    reads_of,
    reductions_in,
)
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.expressions import add, cast_value
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.parameters import PIECE
from rag_kernels.offline.ir.patterns import NARROWED, before_rounding, sixteen_bits, strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.lower import (
    Attended,
    Library,
    Lowered,
    Ordered,
    Scattered,
    Segmented,
    Stored,
    with_values,
)


@dataclass(frozen=True, slots=True)
class Split:
    """When a reduction is split in two: rows fewer than `rows` and longer than `length`, and products of few tiles."""

    rows: int
    length: int = 1 << 15
    whole: int = 0  # rows that take another pass, and are no longer than this, stay whole
    columns: int = 0  # columns fewer than this, and longer than `column`, are split
    column: int = 2048
    tiles: int = 0  # of a product, at which the device is full; 0 leaves products whole
    edge: int = 64  # rows and columns of such a tile
    depth: int = 2048  # shortest depth that is split
    pairs: bool = False  # two products of one factor may be one nest
    scans: bool = True  # running sums; not where blocks share a row of scans alone
    costly: int = 1 << 16  # elements of a region for which costly values used often have a kernel of their own


@dataclass(slots=True)
class Planner:
    """The state of one walk over the steps; `run` returns them with regions in place of stored values."""

    split: Split
    buffers: dict[str, TensorSpec]
    regions: list[Region | Library] = field(default_factory=list)
    stored: dict[ir.Value, ir.Value] = field(default_factory=dict)  # reductions already written -> loads of them
    pairs: dict[Hashable, ir.Value] = field(default_factory=dict)  # what is taken of a running pair -> the first such
    halves: dict[ir.Value, ir.Reduce] = field(default_factory=dict)
    scans: dict[ir.Value, ir.Value] = field(default_factory=dict)  # long scans -> the same in parts
    whole: set[ir.Value] = field(default_factory=set)  # reductions that some step wants whole, with another pass
    tiled: bool = False  # whether blocks share rows of the scans of this step

    def run(self, lowered: Lowered) -> list[Region | Library]:
        """Return the steps with every stored value replaced by its region."""
        for step in lowered.steps:
            if isinstance(step, Stored):
                self.find_whole(step.value)
        for step in lowered.steps:
            if isinstance(step, Library):
                self.regions.append(step)
            elif isinstance(step, Attended):
                self.regions.append(AttentionRegion.of(step))
            elif isinstance(step, Scattered | Ordered | Segmented):
                self.regions.append(self.own_text(step))
            else:
                reduced = any(isinstance(v, ir.Reduce) for v in ir.walk(step.value))
                self.tiled = not self.split.scans and not reduced
                self.store(step.buffer, rewrite(step.value, self.halve), step.slot)
        self.read_what_is_stored()
        return [r if isinstance(r, Library) else settled(r) for r in self.regions]

    def read_what_is_stored(self) -> None:
        """Let nests that would compute a value several times read it where an earlier one stores it for another."""
        stored: dict[ir.Value, ir.Load] = {}
        changed = {
            b for r in self.regions if isinstance(r, OwnText) for b in r.written
        }  # as what a scatter begins with
        for n, region in enumerate(self.regions):
            if isinstance(region, Library | OwnText):
                continue
            if stored:
                read = partial(read_in, stored, frozenset(ir.leaves(region.outer)))
                self.regions[n] = replace(region, stores={b: rewrite(v, read) for b, v in region.stores.items()})
            whole = {b: v for b, v in region.stores.items() if b not in region.slots and b not in changed}
            kept = {b: v for b, v in whole.items() if is_plain(v) and is_work(v)}
            same = {b: v for b, v in kept.items() if v.dtype == self.buffers[b].dtype}
            stored |= {strip(v): self.whole_load(b, v) for b, v in same.items()}

    @staticmethod
    def whole_load(buffer: str, value: ir.Value) -> ir.Load:
        """Return the load of a value's element where it is stored."""
        stored = tuple(ir.leaves(group) for group in value.dims)
        forms = tuple(ir.Form(tuple((leaf, 1) for leaf in group)) for group in stored)
        return ir.Load(value.dims, value.dtype, buffer, stored, forms, value.dtype)

    def own_text(self, step: Scattered | Ordered | Segmented) -> Region:
        """Return the region of a step with a text of its own, after the regions of reductions that it reads."""
        read = with_values(step, lambda value: rewrite(rewrite(value, self.halve), lambda v: self.cut(v, None)))
        match read:
            case Ordered():
                return OrderRegion.of(read)
            case Segmented():
                return SegmentRegion.of(read)
        return ScatterRegion.of(read)

    def find_whole(self, value: ir.Value) -> None:
        """Record the reductions of a stored value along whose loops it is stored: splitting them reads rows twice."""
        loops = {a for group in value.dims for a in ir.leaves(group)}
        for reduction in reductions(value):
            reduced = key_of(reduction)[1]
            if ir.size_of(reduced) <= self.split.whole and reduced <= loops:
                self.whole.add(reduction)

    def store(self, buffer: str, value: ir.Value, slot: ir.Slot | None = None) -> None:
        """Add the region that writes a value, after the regions of the reductions that it cannot hold."""
        value = rewrite(rewrite(value, self.loaded), self.narrowed)
        root = ir.tree_atoms(value) | {a for g in value.dims for a in ir.leaves(g)}
        found = reductions(value)
        main = None
        for reduction in found:
            outer, reduced = key_of(reduction)
            if outer <= root <= outer | reduced:  # one inside another reduction may have loops that this value has not
                main = (outer, reduced)
        alone = self.products_apart(found, main, value)
        loops = main[0] | main[1] if main else frozenset(root)
        inner = innermost(value) | (main[1] if main else frozenset())
        value = rewrite(
            value,
            lambda v: (
                self.load_of(v) if v in alone or self.is_stored_first(v, loops, inner, main) else self.cut(v, main)
            ),
        )
        outer, reduced = main or (frozenset(root), frozenset())
        self.add(Region({buffer: value}, ordered(outer), ordered(reduced), {buffer: slot} if slot else {}))

    def narrowed(self, value: ir.Value) -> ir.Value | None:
        """Return a reduction of what is expanded as one of what is not, stored first and expanded; None for others."""
        if not isinstance(value, ir.Reduce):
            return None
        own = ir.tree_atoms(value)

        def laid(groups: tuple[ir.Group, ...], loops: set[ir.Atom]) -> tuple[ir.Group, ...]:
            return tuple(tuple(leaf for leaf in ir.leaves(group) if leaf in loops) for group in groups)

        dims = laid(value.dims, own)
        if dims == tuple(map(ir.leaves, value.dims)) or not own <= {leaf for group in dims for leaf in group}:
            return None
        read = laid(value.arg.dims, own.union(ir.leaves(value.over)))
        arg = ir.Op(read, value.arg.dtype, Operator.SAME, (value.arg,))
        narrow = self.load_of(replace(value, dims=dims, arg=arg))
        return ir.Op(value.dims, value.dtype, Operator.SAME, (narrow,))

    def is_stored_first(
        self, value: ir.Value, loops: frozenset[ir.Atom], inner: frozenset[ir.Atom], main: Key | None
    ) -> bool:
        """Return whether a value is worth storing before a region of these loops: it has few elements, of which each is
        looked up in a table or costly to compute, and is used often.

        A value that stays the same along the innermost loops is computed outside of them. Rows of a table that are long
        enough are read where they lie.
        """
        own = ir.tree_atoms(value)
        laid = {leaf for group in value.dims for leaf in ir.leaves(group)}
        if not own <= laid:
            return False  # it runs inside a window (a transposed convolution's): a tensor would have no such dimension
        if main and own <= main[0]:
            return False  # it is one for each row, which has it once
        if laid >= loops:
            return False  # it is expanded along these loops: a tensor of it would be as large
        if not own < loops or value.dtype not in ITEMSIZE or USED_OFTEN * ir.size_of(own) > ir.size_of(loops):
            return False
        every = list(ir.walk(value))
        if any(isinstance(v, ir.Reduce | ir.Scan) for v in every):
            return False
        costly = own & inner and ir.size_of(loops) >= self.split.costly
        return any(is_lookup(v) for v in every) or bool(costly and any(map(is_costly, every)))

    def products_apart(self, found: list[ir.Value], main: Key | None, value: ir.Value) -> list[ir.Value]:
        """Return the reductions that are stored first: a product in tiles has a nest of its own, or with another."""
        same = [v for v in found if key_of(v) == main]
        tiled = [v for v in same if tile_of(v)]
        if not tiled or len(same) == 1 or (self.split.pairs and len(same) == 2 and shared_factor(same, value)):
            return []
        return [v for v in same if v is not tiled[-1]]

    def add(self, region: Region) -> None:
        """Append the region, or let an earlier one of the same loops store its value too: inputs are read once."""
        reads = reads_of(region)
        for place in range(len(self.regions) - 1, -1, -1):
            other = self.regions[place]
            if isinstance(other, Library) or (isinstance(other, OwnText) and in_turn(region, other)):
                break
            if isinstance(other, OwnText):
                continue
            touched = bool(reads & other.written.keys())
            near = inlined(region, other) if touched else region
            reads_it = touched and bool(reads_of(near) & other.written.keys())
            if not reads_it and share_loops(other, near) and not self.apart(other, near):
                near = self.named_apart(near, other)
                wide = other if other.reduced else near
                stores, slots = other.stores | near.stores, other.slots | near.slots
                self.regions[place] = Region(stores, wide.outer, wide.reduced, slots)
                return
            if reads & other.written.keys():
                break
        self.regions.append(region)

    def apart(self, one: Region, other: Region) -> bool:
        """Return whether two regions of the same loops want nests of their own.

        One that stores many pieces of a buffer has the registers of all of them, and so have products.
        """
        pieces = one.slots.keys() & other.written.keys()
        if pieces and (len(one.slots) + len(other.slots) > MOST_PIECES or products(one)):
            return True
        return products(one) != products(other) or self.is_tiled(one) != self.is_tiled(other)

    def named_apart(self, region: Region, other: Region) -> Region:
        """Return the region with names of its own for pieces of buffers of which the other one stores a piece."""
        names = {b: f"{b}{PIECE}{len(self.buffers)}" for b in region.stores if b in other.stores}
        self.buffers.update((names[b], self.buffers[b]) for b in names)
        stores = {names.get(b, b): value for b, value in region.stores.items()}
        slots = {names.get(b, b): slot for b, slot in region.slots.items()}
        return replace(region, stores=stores, slots=slots)

    def is_tiled(self, region: Region) -> bool:
        """Return whether blocks will share the rows of a region: few long ones, of scans alone."""
        few = 8 * ir.size_of(region.outer) < self.split.rows and ir.size_of(region.reduced) >= self.split.length
        kinds = {type(v) for v in ir.walk(*region.stores.values()) if isinstance(v, ir.Reduce | ir.Scan)}
        return not self.split.scans and few and kinds == {ir.Scan}

    def cut(self, value: ir.Value, main: Key | None) -> ir.Value | None:
        """Return a load in place of a reduction that has other loops than the region, or None to keep the value."""
        if isinstance(value, ir.Op) and main and is_costly_of_rows(value, main):
            return self.load_of(value)
        if isinstance(value, ir.Op) and value.operator in NARROWED and is_of_other_product(value, main):
            return self.load_of(value)
        if is_of_pair(value) and key_of(value.args[0]) != main:
            return self.load_of(value)  # a pair itself is no tensor's element
        if not isinstance(value, ir.Reduce | ir.Scan):
            return None
        if key_of(value) != main:
            return self.load_of(value)
        if isinstance(value, ir.Reduce) and not value.guards and is_of_rows(value.arg):
            return replace(value, arg=self.load_of(value.arg))
        return None

    def first(self, value: ir.Value) -> ir.Value:
        """Return the value itself, or the first one that takes the same of the same running pair."""
        return self.pairs.setdefault((value.operator, value.dims, value.args[0]), value) if is_of_pair(value) else value

    def loaded(self, value: ir.Value) -> ir.Value | None:
        """Return a load of a value if it is stored."""
        return self.stored.get(self.first(value))

    def load_of(self, value: ir.Value) -> ir.Value:
        """Return a load of a value, which is stored now if it was not."""
        value = self.first(value)
        if value not in self.stored:
            name = f"part{len(self.stored)}"
            while name in self.buffers:
                name += "_"
            atoms = tuple(a for g in value.dims for a in ir.leaves(g))
            flat: ir.Value = replace(value, dims=tuple((a,) for a in atoms))  # one for each loop, none of size 1
            storage = rounding_of(value) or sixteen_bits(value) or value.dtype
            self.buffers[name] = TensorSpec(flat.shape, storage)
            self.store(name, before_rounding(flat, storage))
            forms = tuple(ir.Form(((a, 1),)) for a in atoms)
            stored = tuple((a,) for a in atoms)
            self.stored[value] = ir.Load(value.dims, value.dtype, name, stored, forms, storage)
        return self.stored[value]

    def halve(self, value: ir.Value) -> ir.Value | None:
        """Return a reduction of few long rows as two: partial rows, and the reduction of these; None to keep it."""
        if isinstance(value, ir.Scan):
            return self.halve_scan(value)
        if not isinstance(value, ir.Reduce) or value.guards:
            return None
        if value in self.halves:
            return self.halves[value]
        wanted = self.parts_wanted(value)
        parts = self.parts_of(ir.leaves(value.over), wanted) if wanted > 1 else ()
        if not parts:
            return None
        rest = tuple(a for a in ir.leaves(value.over) if a not in parts)
        arg = rewrite(value.arg, self.halve)
        dims: tuple[ir.Group, ...] = tuple((a,) for a in parts)
        first = tile_of(value) or is_column(value)  # partial results stay contiguous along what they are stored along
        dims = (*dims, *value.dims) if first else (*value.dims, *dims)
        inner = ir.Reduce(dims, value.dtype, value.kind, arg, rest)
        self.halves[value] = ir.Reduce(value.dims, value.dtype, value.kind, inner, parts)
        return self.halves[value]

    def halve_scan(self, value: ir.Scan) -> ir.Value | None:
        """Return a running sum of few long rows as running sums of parts, each from what the parts before come to.

        Sums of parts and what they come to are kept in float64. Rows are read twice; None to keep the scan.
        """
        leaf = value.over.leaves()
        rows, length = ir.size_of(key_of(value)[0]), value.over.size
        floats = value.kind is Kind.SUM and value.dtype == "float32" and len(leaf) == 1
        if self.tiled or not floats or 8 * rows >= self.split.rows or length < self.split.length:
            return None
        if value not in self.scans:
            self.scans[value] = self.scan_in_parts(value, leaf[0], min(self.split.rows // rows, length // SCANNED_PART))
        return self.scans[value]

    def scan_in_parts(self, value: ir.Scan, leaf: ir.Atom, wanted: int) -> ir.Value:
        """Return `halve_scan`'s value for a loop that is to run in about so many parts; itself if it cannot be cut."""
        arg = rewrite(value.arg, self.halve)
        cut = self.parts_of((leaf,), wanted)
        if not cut:
            return value
        outer, inner = leaf.leaves()
        without = tuple(tuple(a for a in ir.leaves(group) if a is not inner) for group in value.dims)
        total = self.load_of(ir.Reduce(without, "float64", Kind.SUM, cast_value(arg, "float64"), (inner,)))
        through = ir.Scan(without, "float64", Kind.SUM, total, outer)
        before = self.load_of(ir.Op(without, "float64", Operator.SUB, (through, total)))
        within = ir.Scan(value.dims, value.dtype, value.kind, arg, inner)
        return cast_value(add(within, before).value, value.dtype)

    def parts_wanted(self, value: ir.Reduce) -> int:
        """Return in how many parts a reduction should run so that it fills the device."""
        outer, reduced = key_of(value)
        length, tile = ir.size_of(reduced), tile_of(value)
        if not tile:
            column = is_column(value)
            if value in self.whole and not column:
                return 1
            rows = ir.size_of(outer)
            if rows < self.split.columns and length >= self.split.column and column:
                most = max(2 * length // self.split.column, min(length // LEAST_PART, FULL_COLUMNS // rows))
                return min(self.split.columns // rows, most)
            return 1 if rows >= self.split.rows or length < self.split.length else self.split.rows // max(1, rows)
        if is_half(value):
            return 1  # its kernel splits the depth itself
        batches, rows, columns = tile
        tiles = batches * -(-rows // self.split.edge) * -(-columns // self.split.edge)
        return 1 if 2 * tiles > self.split.tiles or length < self.split.depth else self.split.tiles // tiles

    @staticmethod
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


def settled(region: Region) -> Region:
    """Return the region with the loops that its own have become: splitting a reduction splits its loops elsewhere."""
    return replace(region, outer=ir.leaves(region.outer), reduced=ir.leaves(region.reduced))


def in_turn(region: Region, other: Region) -> bool:
    """Return whether a region must run after another: one of them reads or writes what the other writes."""
    reads = bool(reads_of(region) & other.written.keys() or reads_of(other) & region.written.keys())
    return reads or bool(region.written.keys() & other.written.keys())


def inlined(region: Region, other: Region) -> Region:
    """Return the region with elements that the other one stores at the same place replaced by how they are computed."""
    if reductions_in(other) or other.slots:
        return region

    def change(v: ir.Value) -> ir.Value | None:
        if not isinstance(v, ir.Load) or v.buffer not in other.stores:
            return None
        here = [
            (leaf, factor) for f in v.index if isinstance(f, ir.Form) for a, factor in f.terms for leaf in a.leaves()
        ]
        there = [(leaf, 1) for group in other.stores[v.buffer].dims for leaf in ir.leaves(group)]
        plain = all(isinstance(f, ir.Form) and not f.offset and not f.sizes and len(f.terms) <= 1 for f in v.index)
        return other.stores[v.buffer] if plain and here == there else None

    return replace(region, stores={b: rewrite(v, change) for b, v in region.stores.items()})


def share_loops(one: Region, other: Region) -> bool:
    """Return whether two regions may be one: they have the same loops, or one has no reduction and runs over all."""
    if all(ir.leaves(a) == ir.leaves(b) for a, b in ((one.outer, other.outer), (one.reduced, other.reduced))):
        return True
    point, row = (one, other) if not one.reduced else (other, one)
    loops = {*ir.leaves(row.outer), *ir.leaves(row.reduced)}
    alike = not point.reduced and bool(row.reduced) and set(ir.leaves(point.outer)) == loops
    return alike and not products(row) and not any(a.window for a in row.reduced)


def rounding_of(value: ir.Value) -> str:
    """Return the dtype of sixteen bits to which the graph rounds a product in tiles, so that it is stored so; or ""."""
    return value.rounded if isinstance(value, ir.Reduce) and tile_of(value) else ""


def is_of_rows(value: ir.Value) -> bool:
    """Return whether a value is one for each row of the reductions in it: these can store it, as what they come to.

    Not of products: what else reads one would compute it again, in a nest of its own.
    """
    found = reductions(value)
    if isinstance(strip(value), ir.Reduce) or any(isinstance(v, ir.Scan) or tile_of(v) for v in found):
        return False
    keys = {key_of(v) for v in found}
    return len(keys) == 1 and ir.tree_atoms(value) == next(iter(keys))[0]


def is_of_other_product(value: ir.Value, main: Key | None) -> bool:
    """Return whether a value is one for each result of a product in a nest of its own: that stores it as it is."""
    found = reductions(value)
    return len(found) == 1 and bool(tile_of(found[0])) and main != key_of(found[0]) and is_each(value, found[0])


def is_each(value: ir.Value, reduction: ir.Value) -> bool:
    """Return whether a value has an element for each of a reduction's."""
    return ir.tree_atoms(value) == key_of(reduction)[0]


def is_costly_of_rows(value: ir.Value, main: Key) -> bool:
    """Return whether a value is worth storing once for each row of other loops, of which a region takes every element.

    It is a root or a quotient of what the rows come to; its operators run as often as the region has elements else.
    """
    outer, reduced = main
    if not ir.tree_atoms(value) < outer | reduced or value.dtype not in ITEMSIZE or not is_of_rows(value):
        return False
    costly = any(isinstance(v, ir.Op) and v.operator in ONCE for v in ir.walk(value))
    return costly and all(key_of(v) != main for v in reductions(value))


def innermost(value: ir.Value) -> frozenset[ir.Atom]:
    """Return the loops of a value's last dimension that is more than one element."""
    return frozenset(next((ir.leaves(group) for group in reversed(value.dims) if group), ()))


def is_costly(value: ir.Value) -> bool:
    """Return whether a value is that of a costly operator: a division of 64 bits takes a hundred instructions."""
    divided = isinstance(value, ir.Op) and value.operator in {Operator.QUOTIENT, Operator.REST}
    return isinstance(value, ir.Op) and (value.operator.traits.costly or (divided and value.dtype == "int64"))


def is_work(value: ir.Value) -> bool:
    """Return whether a value takes more to compute than to read: several operators of something that is loaded."""
    every = list(ir.walk(value))
    return sum(isinstance(v, ir.Op) for v in every) >= WORK and any(isinstance(v, ir.Load) for v in every)


def read_in(stored: dict[ir.Value, ir.Load], outer: frozenset[ir.Atom], value: ir.Value) -> ir.Value | None:
    """Return the load of a value that is stored and lies along not all of a nest's outer loops; None to compute it."""
    found = stored.get(strip(value))
    if found is None or found.dtype != value.dtype:
        return None
    own = {leaf for atom in ir.tree_atoms(value) for leaf in atom.leaves()}
    return None if outer <= own else replace(found, dims=value.dims)


def is_plain(value: ir.Value) -> bool:
    """Return whether a value runs over one loop a dimension at most, and none that it is not computed along."""
    groups = [ir.leaves(group) for group in value.dims]
    leaves = {leaf for atom in ir.tree_atoms(value) for leaf in atom.leaves()}
    return all(len(group) <= 1 for group in groups) and {a for group in groups for a in group} == leaves


def is_lookup(value: ir.Value) -> bool:
    """Return whether a load is at a computed place, another for each element, and its neighbours are elsewhere."""
    if not isinstance(value, ir.Load):
        return False
    if not any(ir.tree_atoms(form) for form in value.index if not isinstance(form, ir.Form)):
        return False
    last = value.index[-1]
    along = ir.size_of(a for a, factor in last.terms if factor == 1) if isinstance(last, ir.Form) else 1
    return along < LONG_ROW


def is_looked_up_often(value: ir.Value, loops: set[ir.Atom]) -> bool:
    """Return whether a value has few elements beside these loops, of which each is looked up and used often."""
    own, laid = ir.tree_atoms(value), {leaf for group in value.dims for leaf in ir.leaves(group)}
    few = own == laid and own < loops and USED_OFTEN * ir.size_of(own) <= ir.size_of(loops)
    return few and value.dtype in ITEMSIZE and any(map(is_lookup, ir.walk(value)))


def is_of_pair(value: ir.Value) -> TypeGuard[ir.Op]:
    """Return whether a value is one number of a running pair: a softmax's maximum or sum, an extreme or its place."""
    return isinstance(value, ir.Op) and bool(value.operator.traits.pair) and isinstance(value.args[0], ir.Reduce)


def is_column(value: ir.Reduce) -> bool:
    """Return whether neighbours in memory belong to other sums: the innermost loop of what is read is not summed.

    What all sums read alike, a factor for each of their elements, may lie as it does; where nothing else is summed
    they are sums over pairs, whose other half is each sum's own. A convolution's window moves along with what it makes.
    """
    over = set(ir.leaves(value.over))
    taps = {a for v in ir.walk(value.arg) if isinstance(v, ir.Reduce) for a in ir.leaves(v.over)} - over
    loads = [v for v in ir.walk(value.arg) if isinstance(v, ir.Load)]
    summed = [v for v in loads if ir.tree_atoms(v) & over]
    own = [v for v in summed if not ir.tree_atoms(v) <= over]
    if not own:
        return any(ir.tree_atoms(v) for v in loads if v not in summed)
    last = [next((f for f in reversed(v.index) if not isinstance(f, ir.Form) or f.terms), None) for v in own]
    return all(isinstance(f, ir.Form) and innermost_of(f, taps) not in over for f in last)


def innermost_of(form: ir.Form, taps: set[ir.Atom]) -> ir.Atom:
    """Return the innermost loop of an index, one that a sum inside consumes only if there is no other."""
    every = [leaf for atom, _ in form.terms for leaf in atom.leaves()]
    return next((leaf for leaf in reversed(every) if leaf not in taps), every[-1])


LEAST_PART, FULL_COLUMNS = 256, 1 << 14  # elements of a part of a column; columns by which a device is busy
WORK = 4  # operators of a value that is rather read
MOST_PIECES = 64  # of one buffer that a nest stores
USED_OFTEN, LONG_ROW = 16, 8  # times that an element stored first is used; elements of a row read where it lies
ONCE = frozenset({Operator.SQRT, Operator.DIV})  # of what other rows come to


def products(region: Region) -> set[ir.Value]:
    """Return the products of a region that run in tiles: each wants a nest of its own."""
    return {v for v in ir.walk(*region.stores.values()) if tile_of(v)}
