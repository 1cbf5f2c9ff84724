"""What rows of a product come to (a sum, an extreme, a softmax's sum), taken in the product's own nest.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps, in which a reduction along a product's columns is
one of groups of neighbouring columns, and one of what the groups come to. The first is part of the product's nest,
which stores a number for each group in place of the product; a tile of any width has whole groups. A softmax's sum is
that of each group below the group's own maximum, scaled to the row's (Milakov & Gimelshein, "Online normalizer
calculation for softmax", 2018). Reductions stay as they are where anything else reads the product.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from math import inf

from rag_kernels.offline.fusion.loops import key_of, loops_of
from rag_kernels.offline.fusion.stores.read_where_made import unstored
from rag_kernels.offline.fusion.sums.parts import Split, parts_wanted
from rag_kernels.offline.fusion.sums.products import factors_of, tile_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.expressions import Expr, absolute, equal, exp, where
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import exponentials, strip
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.steps import Lowered, Stored, values_of, with_values

GROUP, NARROW_GROUP = 32, 16  # columns of a group at least, as a warp stores them, and where tiles are turned
WIDE_GROUPS = ((1 << 12, 128), (1 << 10, 64))  # of how many columns a group has more: tiles are as wide there
FEWEST_ROWS, FEWEST_COLUMNS, FEWEST_TERMS = 33, 64, 16  # of a product; one of fewer rows has another kernel
KINDS = frozenset({Kind.SUM, Kind.MAX, Kind.MIN, Kind.FASTMAX})


@dataclass(frozen=True, slots=True)
class Statistic:
    """A reduction of what a product's elements are made to, and along which of its columns groups lie."""

    value: ir.Reduce
    product: ir.Reduce
    column: ir.Atom
    top: ir.Reduce | None = None  # of a sum of exponentials: the maximum below which they are
    finite: bool = False  # whether 0 stands for that where it is infinite


def grouped_product(value: ir.Value) -> ir.Reduce | None:
    """Return the product of which a reduction takes groups of neighbouring columns, or None where it takes others."""
    if not isinstance(value, ir.Reduce) or not value.grouped:
        return None
    return next(v for v in ir.walk(value.arg) if isinstance(v, ir.Reduce) and tile_of(v) and is_whole(v, value))


def is_whole(product: ir.Reduce, group: ir.Reduce) -> bool:
    """Return whether groups are of this product's results, and not of one that a factor is computed from."""
    outer, reduced = key_of(group)
    return key_of(product)[0] == outer | reduced


def with_grouped_columns(lowered: Lowered, split: Split) -> Lowered:
    """Return the steps with what rows of products come to taken in groups of columns, where nothing else reads them."""
    for step in lowered.steps:
        if isinstance(step, Stored) and is_of_product(step.value) and (other := unstored(lowered, step)):
            inside = set(ir.walk(step.value))
            lowered = other if any(v.product in inside for v in statistics_in(other, split).values()) else lowered
    found = statistics_in(lowered, split)
    if not found:
        return lowered
    groups = _Groups(found)
    return replace(lowered, steps=tuple(with_values(step, lambda v: rewrite(v, groups)) for step in lowered.steps))


def is_of_product(value: ir.Value) -> bool:
    """Return whether a value is what each element of a product is made to."""
    found = ir.outermost(value)
    return len(found) == 1 and bool(tile_of(found[0])) and key_of(found[0])[0] == set(loops_of(value))


def statistics_in(lowered: Lowered, split: Split) -> dict[ir.Value, Statistic]:
    """Return by reduction what can be taken in the nest of a product, of all whose elements nothing else reads."""
    values = [value for step in lowered.steps for value in values_of(step)]
    found: dict[ir.Value, Statistic] = {}
    for v in ir.walk(*values):
        if one := statistic_of(v, found, split):
            found[v] = one
    read = set(ir.walk(*values, enter=lambda v: v not in found))
    columns: dict[ir.Value, set[ir.Atom]] = {}
    for one in found.values():
        columns.setdefault(one.product, set()).add(one.column)
    return {v: one for v, one in found.items() if one.product not in read and len(columns[one.product]) == 1}


def statistic_of(value: ir.Value, known: dict[ir.Value, Statistic], split: Split) -> Statistic | None:
    """Return a reduction of a product's elements as a statistic, or None; `known` are those that it may depend on."""
    if not isinstance(value, ir.Reduce) or value.kind not in KINDS or value.dtype != "float32" or value.guards:
        return None
    below = exponentials(value)
    top = known.get(below[0]) if below else None
    found = [v for v in ir.outermost(value.arg) if not (below and v is below[0])]
    product = found[0] if len(found) == 1 else None
    if tile_of(value) or not isinstance(product, ir.Reduce) or (below and (top is None or top.product is not product)):
        return None
    outer, reduced = key_of(value)
    if value.arg.dtype != "float32" or key_of(product)[0] != outer | reduced or not serves(product, split):
        return None
    column = top.column if top else column_of(value, product)
    if column is None:
        return None
    return Statistic(value, product, column, below[0] if below else None, bool(below and below[1]))


def serves(product: ir.Reduce, split: Split) -> bool:
    """Return whether a product runs whole, in tiles of a kernel that takes groups of columns: not one with a window."""
    forms = [form for v in ir.walk(product.arg) for form in ir.forms(v)]
    plain = bool(tile_of(product)) and not product.guards and all(len(form.terms) <= 1 for form in forms)
    return plain and ir.size_of(product.over) >= FEWEST_TERMS and parts_wanted(split, product, whole=False) == 1


def column_of(value: ir.Reduce, product: ir.Reduce) -> ir.Atom | None:
    """Return the reduced loop along which groups lie: of one factor, in whole groups, with rows enough beside it."""
    factors = factors_of(product)
    assert factors
    outer = key_of(product)[0]
    left, right = (ir.tree_atoms(factor) & outer for factor in factors)
    for leaf in reversed(ir.leaves(value.over)):
        mine, other = (left, right) if leaf in left else (right, left)
        whole = leaf.size % GROUP == 0 and leaf.size >= FEWEST_COLUMNS and not leaf.along and not leaf.fixed
        if whole and leaf not in other and ir.size_of(other - mine) >= FEWEST_ROWS:
            return leaf
    return None


@dataclass(slots=True)
class _Groups:
    """Replaces statistics by what their groups come to, taken together."""

    found: dict[ir.Value, Statistic]
    halves: dict[ir.Value, tuple[ir.Reduce, ir.Value]] = field(default_factory=dict)  # those of groups, and of rows

    def __call__(self, value: ir.Value) -> ir.Value | None:
        one = self.found.get(value)
        return self.halved(one)[1] if one else None

    def halved(self, one: Statistic) -> tuple[ir.Reduce, ir.Value]:
        """Return what each group comes to, and what a row does."""
        if one.value not in self.halves:
            self.halves[one.value] = self.sum_below(one, one.top) if one.top else self.joined(one)
        return self.halves[one.value]

    def joined(self, one: Statistic) -> tuple[ir.Reduce, ir.Value]:
        """Return a reduction in groups of columns, and what these come to."""
        group, rest = self.grouped(one, one.value.arg)
        return group, replace(one.value, arg=group, over=rest)

    def sum_below(self, one: Statistic, top: ir.Reduce) -> tuple[ir.Reduce, ir.Value]:
        """Return the sum of exponentials below the maximum of each group, and those of a row below its own."""
        high, highest = self.halved(self.found[top])
        x = Expr(top.arg)
        group, rest = self.grouped(one, exp(x - finite(laid(high, x.value.dims))).value)
        row = laid(highest, group.dims)
        scale = exp(laid(high, group.dims) - (finite(row) if one.finite else row))
        return group, replace(one.value, arg=(Expr(group) * scale).value, over=rest)

    @staticmethod
    def grouped(one: Statistic, arg: ir.Value) -> tuple[ir.Reduce, ir.Group]:
        """Return the reduction of each group of columns, and the loops over groups."""
        if not one.column.parts:
            one.column.split(one.column.size // width_of(one.product, one.column))
            assert one.column.parts
            one.column.parts[1].fixed = True
        inner = one.column.leaves()[-1]
        rest = tuple(a for a in ir.leaves(one.value.over) if a is not inner)
        dims = (*one.value.dims, *((a,) for a in rest))
        return replace(one.value, dims=dims, arg=arg, over=(inner,), grouped=True), rest


def width_of(product: ir.Reduce, column: ir.Atom) -> int:
    """Return how many columns a group has: many of many, few where a factor of fp32 has them side by side.

    wgmma takes TF32 so as its left factor alone: a warp has sixteen columns then, and more rows.
    """
    loads = [v for factor in factors_of(product) or () if isinstance(v := strip(factor), ir.Load)]
    last = [v.index[-1] for v in loads if v.storage == "float32"]
    inner = [ir.leaves(a for a, n in form.terms if n == 1)[-1:] for form in last if isinstance(form, ir.Form)]
    wide = (width for least, width in WIDE_GROUPS if column.size >= least and column.size % width == 0)
    return NARROW_GROUP if (column,) in inner else next(wide, GROUP)


def laid(value: ir.Value, dims: tuple[ir.Group, ...]) -> Expr:
    """Return a value expanded to these dimensions."""
    return Expr(ir.Op(dims, value.dtype, Operator.SAME, (value,)))


def finite(top: Expr) -> Expr:
    """Return a maximum, or 0 where it is infinite."""
    return where(equal(absolute(top), inf), 0, top)
