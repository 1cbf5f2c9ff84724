"""From stored values to regions: which values share a loop nest, and what is stored in between.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps with every `Stored` replaced by `Region`s. A
reduction over other loops than its region's is stored first, by a region of its own. Few long rows are split: partial
results first, then the rest. Knows nothing of languages.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, field, replace
from functools import partial

from rag_kernels.eval.records import TensorSpec
from rag_kernels.offline.fusion.loops import Key, key_of, loops_of, ordered, reductions
from rag_kernels.offline.fusion.regions import (
    SCANNED_PART,
    AttentionRegion,
    ChainedRegion,
    OrderRegion,
    OwnText,
    RecurrentRegion,
    Region,
    ScatterRegion,
    SegmentRegion,
    reads_of,
    reductions_in,
)
from rag_kernels.offline.fusion.stores.common_values import Shared
from rag_kernels.offline.fusion.stores.computed_again import worth_keeping
from rag_kernels.offline.fusion.stores.inlined import inlined
from rag_kernels.offline.fusion.stores.layouts import order_of_loads
from rag_kernels.offline.fusion.stores.stored_first import (
    USED_OFTEN,
    innermost,
    is_costly,
    is_costly_of_rows,
    is_lookup,
    is_of_other_product,
    is_of_pair,
    is_of_rows,
    is_plain,
    is_work,
    read_in,
)
from rag_kernels.offline.fusion.sums.parts import Split, is_column, parts_of, parts_wanted
from rag_kernels.offline.fusion.sums.products import is_half, shared_factor, tile_of
from rag_kernels.offline.fusion.tiles.product_statistics import grouped_product
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.expressions import add, cast_value
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.parameters import PIECE
from rag_kernels.offline.ir.patterns import NARROWED, before_rounding, sixteen_bits, strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import Made, rewrite, rewrite_each
from rag_kernels.offline.lowering.steps import (
    Attended,
    Chained,
    Library,
    Lowered,
    Ordered,
    Recurrent,
    Scattered,
    Segmented,
    Stored,
    values_of,
    with_values,
)


@dataclass(slots=True)
class Planner:
    """The state of one walk over the steps; `run` returns them with regions in place of stored values."""

    split: Split
    buffers: dict[str, TensorSpec]
    regions: list[Region | Library] = field(default_factory=list)
    stored: dict[ir.Value, ir.Value] = field(default_factory=dict)  # reductions already written -> loads of them
    alike: Shared = field(default_factory=lambda: Shared(laid=True))  # the first of values that are alike
    pairs: dict[Hashable, ir.Value] = field(default_factory=dict)  # what is taken of a running pair -> the first such
    halves: dict[ir.Value, ir.Reduce] = field(default_factory=dict)
    scans: dict[ir.Value, ir.Value] = field(default_factory=dict)  # long scans -> the same in parts
    tiles: dict[ir.Value, frozenset[ir.Value]] = field(default_factory=dict)  # stored values -> their products in tiles
    depths: dict[ir.Value, int] = field(default_factory=dict)
    kept_in: dict[Key, Made] = field(
        default_factory=dict
    )  # by a nest's loops, and the innermost: values as it has them
    kept: set[ir.Value] = field(default_factory=set)  # products that the first nest which has one stores for others
    whole: set[ir.Value] = field(default_factory=set)  # reductions that some step wants whole, with another pass
    groups: dict[ir.Value, list[ir.Reduce]] = field(default_factory=dict)  # by product: what groups of its columns are
    tiled: bool = False  # whether blocks share rows of the scans of this step

    def run(self, lowered: Lowered) -> list[Region | Library]:
        """Return the steps with every stored value replaced by its region."""
        for step in lowered.steps:
            if isinstance(step, Stored):
                self.find_whole(step.value)
            for value in values_of(step):
                self.find_groups(value)
        self.kept |= worth_keeping(step.value for step in lowered.steps if isinstance(step, Stored))
        for step in lowered.steps:
            if isinstance(step, Library):
                self.regions.append(step)
            elif isinstance(step, Attended):
                self.regions.append(AttentionRegion.of(step))
            elif isinstance(step, Chained):
                self.regions.append(ChainedRegion.of(step))
            elif isinstance(step, Recurrent):
                self.regions.append(RecurrentRegion.of(step))
            elif isinstance(step, Scattered | Ordered | Segmented):
                self.regions.append(self.own_text(step))
            else:
                found = reductions(step.value)
                self.tiled = not self.split.scans and not any(isinstance(v, ir.Reduce) for v in found)
                value = rewrite(step.value, self.halve) if found else step.value
                self.store(step.buffer, value, step.slot)
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
                values = rewrite_each(list(region.stores.values()), read)
                self.regions[n] = replace(region, stores=dict(zip(region.stores, values, strict=True)))
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

    def find_groups(self, value: ir.Value) -> None:
        """Record the reductions of groups of a product's columns, which its nest stores all at once."""
        for v in reductions(value):
            product = grouped_product(v)
            if product and isinstance(v, ir.Reduce) and v not in self.groups.setdefault(product, []):
                self.groups[product].append(v)

    def find_whole(self, value: ir.Value) -> None:
        """Record the reductions of a stored value along whose loops it is stored: splitting them reads rows twice.

        Those over other loops than the region's have a region of their own, and read their rows once.
        """
        found = reductions(value)
        loops = {a for group in value.dims for a in ir.leaves(group)}
        main = main_key(value)
        loads = [v for v in ir.walk(value) if isinstance(v, ir.Load)] if found else []
        for reduction in found:
            key = key_of(reduction)
            kept = {v.buffer for v in loads if ir.tree_atoms(v) & key[1]}
            if key == main and ir.size_of(key[1]) * len(kept) <= self.split.whole and key[1] <= loops:
                self.whole.add(reduction)

    def store(self, buffer: str, value: ir.Value, slot: ir.Slot | None = None) -> None:
        """Add the region that writes a value, after the regions of the reductions that it cannot hold."""
        value = self.alike.read(value, self.loaded)
        if reductions(value):
            value = rewrite(rewrite(value, self.narrowed), self.set_apart)
        root = ir.tree_atoms(value) | {a for g in value.dims for a in ir.leaves(g)}
        found = reductions(value)
        main = main_key(value)
        alone = self.products_apart(found, main, value)
        loops = main[0] | main[1] if main else frozenset(root)
        inner = innermost(value) | (main[1] if main else frozenset())
        half = any(isinstance(v, ir.Reduce) and key_of(v) == main and is_half(v) for v in found)
        value = rewrite(
            value,
            lambda v: (
                self.load_of(v)
                if v in alone
                else self.load_of(v, factor=half)
                if self.is_stored_first(v, loops, inner, main)
                else self.cut(v, main)
            ),
            None if found else self.kept_in.setdefault((loops, inner), {}),
        )
        outer, reduced = main or (frozenset(root), frozenset())
        self.add(Region({buffer: value}, ordered(outer), ordered(reduced), {buffer: slot} if slot else {}))
        for product in [v for v in ir.walk(value) if v in self.kept]:
            self.kept.remove(product)
            self.load_of(product, here=True)

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

    def set_apart(self, value: ir.Value) -> ir.Value | None:
        """Return a load of a reduction that has a nest of its own; None for others."""
        if not isinstance(value, ir.Reduce) or not value.apart:
            return None
        self.stored[value] = self.load_of(replace(value, apart=False))
        return self.stored[value]

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
            near = self.near(region, other) if touched else region
            reads_it = touched and bool(reads_of(near) & other.written.keys())
            if not reads_it and self.share_loops(other, near) and not self.apart(other, near):
                near = self.named_apart(near, other)
                wide = other if other.reduced else near
                stores, slots = other.stores | near.stores, other.slots | near.slots
                self.regions[place] = Region(stores, wide.outer, wide.reduced, slots)
                return
            if reads & other.written.keys():
                break
        self.regions.append(region)

    def share_loops(self, one: Region, other: Region) -> bool:
        """Return whether two regions may be one: of the same loops, or one has no reduction and runs over all."""
        if all(ir.leaves(a) == ir.leaves(b) for a, b in ((one.outer, other.outer), (one.reduced, other.reduced))):
            return True
        point, row = (one, other) if not one.reduced else (other, one)
        loops = {*ir.leaves(row.outer), *ir.leaves(row.reduced)}
        alike = not point.reduced and bool(row.reduced) and set(ir.leaves(point.outer)) == loops
        return alike and not self.products(row) and not any(a.window for a in row.reduced)

    def products(self, region: Region) -> set[ir.Value]:
        """Return the products of a region that run in tiles: each wants a nest of its own."""
        values = region.stores.values()
        self.tiles |= {v: frozenset(filter(tile_of, reductions(v))) for v in values if v not in self.tiles}
        return {product for value in values for product in self.tiles[value]}

    def near(self, region: Region, other: Region) -> Region:
        """Return the region with what it reads of another one computed in its place, unless that is a long chain."""
        found = inlined(region, other)
        deep = any(ir.depth(value, self.depths) > ir.DEEPEST for value in found.stores.values())
        return region if deep else found

    def apart(self, one: Region, other: Region) -> bool:
        """Return whether two regions of the same loops want nests of their own.

        One that stores many pieces of a buffer has the registers of all of them, and so have products.
        """
        pieces = one.slots.keys() & other.written.keys()
        if pieces and (len(one.slots) + len(other.slots) > MOST_PIECES or self.products(one)):
            return True
        return not self.have_the_same_products(one, other) or self.is_tiled(one) != self.is_tiled(other)

    def have_the_same_products(self, one: Region, other: Region) -> bool:
        """Return whether two regions have the same products, or one has some of the other's, in the same order."""
        mine, theirs = self.products(one), self.products(other)
        if not mine or not theirs:
            return mine == theirs
        alike = {innermost(value) for value in [*one.stores.values(), *other.stores.values()]}
        return len(alike) == 1 and (mine <= theirs or theirs <= mine)

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
        return not self.split.scans and few and {type(v) for v in reductions_in(region)} == {ir.Scan}

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

    def load_of(self, value: ir.Value, *, here: bool = False, factor: bool = False) -> ir.Value:
        """Return a load of a value, which is stored now if it was not; `here` by the nest that computes it already.

        What is a `factor` of a product of sixteen bits lies as that which it is computed from.
        """
        value = self.first(value)
        product = None if value in self.stored else grouped_product(value)
        if product and isinstance(value, ir.Reduce):
            self.store_groups(product, value)
        if value not in self.stored:
            name = self.new_name()
            order = order_of_loads(value) if factor else ()
            atoms = tuple(a for d in order or range(len(value.dims)) for a in ir.leaves(value.dims[d]))
            dims = tuple((a,) for a in atoms)  # one for each loop, none of size 1
            flat = ir.Op(dims, value.dtype, Operator.SAME, (value,)) if here else replace(value, dims=dims)
            storage = rounding_of(value) or sixteen_bits(value) or value.dtype
            self.buffers[name] = TensorSpec(flat.shape, storage)
            self.store(name, before_rounding(flat, storage))
            forms = tuple(ir.Form(((a, 1),)) for a in atoms)
            stored = tuple((a,) for a in atoms)
            self.stored[value] = ir.Load(value.dims, value.dtype, name, stored, forms, storage)
        return self.stored[value]

    def new_name(self) -> str:
        """Return the name of the next buffer."""
        name = f"part{len(self.stored)}"
        while name in self.buffers:
            name += "_"
        return name

    def store_groups(self, product: ir.Reduce, value: ir.Reduce) -> None:
        """Add the region that computes a product and stores what groups of its columns come to, this value's too."""
        values = self.groups.get(product, [])
        values = values if value in values else [value]
        main, own = key_of(product), key_of(value)

        def change(v: ir.Value) -> ir.Value | None:
            if isinstance(v, ir.Reduce) and key_of(v) in {main, own}:
                return None
            if found := self.loaded(v):
                return found
            first = self.is_stored_first(v, main[0] | main[1], main[1] | own[1], main)
            return self.load_of(v) if first else self.cut(v, main)

        stores = dict[str, ir.Value]()
        for one, changed in zip(values, rewrite_each(values, change), strict=True):
            name, atoms = self.new_name(), loops_of(one)
            stores[name] = ir.Op(tuple((a,) for a in atoms), one.dtype, Operator.SAME, (changed,))
            self.buffers[name] = TensorSpec(stores[name].shape, one.dtype)
            stored = tuple((a,) for a in atoms)
            forms = tuple(ir.Form(((a, 1),)) for a in atoms)
            self.stored[one] = ir.Load(one.dims, one.dtype, name, stored, forms, one.dtype)
        self.add(Region(stores, ordered(own[0]), ordered(own[1] | main[1])))

    def halve(self, value: ir.Value) -> ir.Value | None:
        """Return a reduction of few long rows as two: partial rows, and the reduction of these; None to keep it."""
        if isinstance(value, ir.Scan):
            return self.halve_scan(value)
        if not isinstance(value, ir.Reduce) or value.guards or value.apart:
            return None
        if value in self.halves:
            return self.halves[value]
        wanted = parts_wanted(self.split, value, whole=value in self.whole)
        parts = parts_of(ir.leaves(value.over), wanted) if wanted > 1 else ()
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
        cut = parts_of((leaf,), wanted)
        if not cut:
            return value
        outer, inner = leaf.leaves()
        without = tuple(tuple(a for a in ir.leaves(group) if a is not inner) for group in value.dims)
        total = self.load_of(ir.Reduce(without, "float64", Kind.SUM, cast_value(arg, "float64"), (inner,)))
        through = ir.Scan(without, "float64", Kind.SUM, total, outer)
        before = self.load_of(ir.Op(without, "float64", Operator.SUB, (through, total)))
        within = ir.Scan(value.dims, value.dtype, value.kind, arg, inner)
        return cast_value(add(within, before).value, value.dtype)


def main_key(value: ir.Value) -> Key | None:
    """Return the outer and the reduced loops of the region that stores a value, if it has a reduction's."""
    root = ir.tree_atoms(value) | {a for g in value.dims for a in ir.leaves(g)}
    main = None
    for reduction in reductions(value):
        outer, reduced = key_of(reduction)
        if outer <= root <= outer | reduced:  # one inside another reduction may have loops that this value has not
            main = (outer, reduced)
    return main


def settled(region: Region) -> Region:
    """Return the region with the loops that its own have become: splitting a reduction splits its loops elsewhere."""
    return replace(region, outer=ir.leaves(region.outer), reduced=ir.leaves(region.reduced))


def in_turn(region: Region, other: Region) -> bool:
    """Return whether a region must run after another: one of them reads or writes what the other writes."""
    reads = bool(reads_of(region) & other.written.keys() or reads_of(other) & region.written.keys())
    return reads or bool(region.written.keys() & other.written.keys())


def rounding_of(value: ir.Value) -> str:
    """Return the dtype of sixteen bits to which the graph rounds a product in tiles, so that it is stored so; or ""."""
    return value.rounded if isinstance(value, ir.Reduce) and tile_of(value) else ""


MOST_PIECES = 64  # of one buffer that a nest stores
