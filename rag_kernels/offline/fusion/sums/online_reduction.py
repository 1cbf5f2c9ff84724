"""Reductions that need two passes over a row, rewritten to one, for rows too long to be kept.

Comes in: values. Goes out: values in which mean and variance come from a sum and a sum of squares, both in double, and
a softmax's maximum and sum from running pairs (Milakov & Gimelshein, "Online normalizer calculation for softmax",
2018). Rows that a kernel can keep are left alone: there a second pass costs nothing and rounds less. An extreme and
its index are one pair, too, in rows of any length; the largest weight of a softmax is that of the largest number.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.expressions import Expr, cast_value, square, where
from rag_kernels.offline.ir.operators import PAIR, PLACE, Operator
from rag_kernels.offline.ir.patterns import (
    exponential_below,
    mean,
    operands,
    place_of_extreme,
    squared_difference,
    strip,
)
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.steps import Lowered, values_of, with_values

STREAMED = 4  # sums of exponentials of narrow rows, of which nothing is stored, run in one pass from so much less on
Row = tuple[ir.Value, frozenset[ir.Atom]]  # what is reduced, and over which loops


def one_pass(lowered: Lowered, kept: int) -> Lowered:
    """Return the steps with values rewritten to one pass over the data, where rows have more than `kept` bytes."""
    change = _OnePass(kept)
    values = [value for step in lowered.steps for value in values_of(step)]
    inside = {a for v in values for group in v.dims for a in ir.leaves(group)}
    change.collect(values, inside)
    return replace(lowered, steps=tuple(with_values(step, lambda v: rewrite(v, change)) for step in lowered.steps))


@dataclass(slots=True)
class _OnePass:
    """Replaces reductions of long rows by their one-pass forms; `collect` finds the rows first."""

    kept: int  # bytes of the longest row that a kernel keeps
    counts: dict[Row, ir.Group] = field(default_factory=dict)  # rows with a variance, and what a mean divides by
    tops: set[Row] = field(default_factory=set)  # rows with a softmax's sum
    placed: dict[tuple[Row, Kind], ir.Value] = field(default_factory=dict)  # rows whose extreme has an index -> that
    weighed: dict[Row, ir.Value] = field(default_factory=dict)  # rows whose largest weight has an index -> that
    doubles: dict[Row, ir.Value] = field(default_factory=dict)  # what is summed in float64
    made: dict[tuple[Row, str, tuple[ir.Group, ...]], ir.Reduce] = field(default_factory=dict)  # by its dimensions too

    def collect(self, values: Iterable[ir.Value], inside: set[ir.Atom]) -> None:
        """Find the rows that are rewritten; `inside` are the loops along which anything is stored."""
        for v in ir.walk(*values):
            hit = place_of_extreme(v.arg) if isinstance(v, ir.Reduce) and v.kind is Kind.MIN else None
            if hit and isinstance(v, ir.Reduce) and (weights := self.weights_of(v)):
                self.weighed[row_of(weights[0])] = hit[2]
            elif hit and isinstance(v, ir.Reduce) and (kind := self.kind_of_place(v, *hit[:2])):
                self.placed[(hit[0], row_of(v)[1]), kind] = hit[2]
            if not isinstance(v, ir.Reduce) or v.kind is not Kind.SUM or v.guards:
                continue
            row = self.inner(v)
            about = squared_difference(v.arg)
            streams = about is None and not inside & set(ir.leaves(v.over)) and bytes_of(v) < 4 * ir.size_of(v.over)
            if row is None or bytes_of(v) <= (self.kept // STREAMED if streams else self.kept):
                continue
            if about is None:
                self.tops.add(row)
            elif divided := mean(about[1]):
                self.counts[row] = divided[1].group

    def inner(self, value: ir.Reduce) -> Row | None:
        """Return the row whose mean or maximum a reduction depends on.

        These are sums of squares about the mean, and of exponentials below the maximum; None for any other.
        """
        about, power = squared_difference(value.arg), exponential_below(value.arg)
        divided = mean(about[1]) if about else None
        if about and divided:
            first, below, kind = about[0], divided[0], Kind.SUM
        elif power and power[0].dtype == "float32":
            first, below, kind = *power, Kind.FASTMAX
        else:
            return None
        if isinstance(below, ir.Reduce) and below.kind is kind and below.arg is first and not below.guards:
            row = row_of(below)
            return row if row[1] == row_of(value)[1] else None
        return None

    def __call__(self, value: ir.Value) -> ir.Value | None:
        if not isinstance(value, ir.Reduce) or value.guards:
            return None
        if weights := self.weights_of(value):
            return self.largest_weight(value, *weights)
        row = row_of(value)
        if value.kind is Kind.FASTMAX and row in self.weighed:
            found = self.pair_of_place(value, Kind.MAX, row[0], self.weighed[row])
            return ir.Op(value.dims, value.dtype, Operator.PLACE_VALUE, (found,))
        if value.kind is Kind.SUM and row in self.counts:
            return cast_value(self.total(value, value.arg), value.dtype)
        if value.kind is Kind.FASTMAX and row in self.tops:
            return ir.Op(value.dims, value.dtype, Operator.PAIR_TOP, (self.pair(value, value.arg),))
        if value.kind is Kind.MIN and (hit := place_of_extreme(value.arg)):
            return self.place(value, *hit)
        if index := self.placed.get((row, value.kind)):  # part of the pair that its index is part of
            found = self.pair_of_place(value, value.kind, row[0], index)
            return ir.Op(value.dims, value.dtype, Operator.PLACE_VALUE, (found,))
        below = self.inner(value) if value.kind is Kind.SUM else None
        about, power = squared_difference(value.arg), exponential_below(value.arg)
        if below in self.tops and power:
            powers = ir.Op(value.dims, "float64", Operator.PAIR_SUM, (self.pair(value, power[0]),))
            return cast_value(powers, value.dtype)
        if below in self.counts and about:
            total = Expr(self.total(value, about[0]))
            squares = Expr(self.total(value, about[0], squares=True))
            least = square(total) / ir.Size((), "float64", self.counts[below])
            return cast_value(where(squares < least, 0, squares - least).value, value.dtype)
        return None

    def total(self, value: ir.Reduce, x: ir.Value, *, squares: bool = False) -> ir.Value:
        """Return the sum of x, or of its squares, over a reduction's loops, in float64."""
        row = (x, frozenset(ir.leaves(value.over)))
        if row not in self.doubles:
            self.doubles[row] = cast_value(rewrite(x, self), "float64")
        key = row, "squares" if squares else "sum", value.dims
        if key not in self.made:
            term = self.doubles[row]
            term = square(Expr(term)).value if squares else term
            self.made[key] = ir.Reduce(value.dims, "float64", Kind.SUM, term, value.over)
        return self.made[key]

    def weights_of(self, value: ir.Reduce) -> tuple[ir.Reduce, ir.Reduce] | None:
        """Return maximum and sum of the softmax whose largest weight, or the index of that, a reduction is."""
        hit = place_of_extreme(value.arg) if value.kind is Kind.MIN else None
        if hit and self.kind_of_place(value, *hit[:2]) is not Kind.MAX:
            return None
        found = softmax_of(hit[0] if hit else value.arg) if hit or value.kind is Kind.MAX else None
        return found if found and row_of(found[0])[1] == frozenset(ir.leaves(value.over)) else None

    def largest_weight(self, value: ir.Reduce, top: ir.Reduce, total: ir.Reduce) -> ir.Value:
        """Return the weight of a softmax's largest number, or its index; where weights are NaN the first is meant."""
        high, whole = rewrite(top, self), rewrite(total, self)
        none = ir.Op(top.dims, "float32", Operator.SUB, (high, high))  # NaN where all weights are
        weight = ir.Op(top.dims, "float32", Operator.DIV, (ir.Op(top.dims, "float32", Operator.EXP, (none,)), whole))
        weight = ir.Op(value.dims, "float32", Operator.SAME, (weight,))
        if value.kind is Kind.MAX:
            return weight
        row = row_of(top)
        pair = self.pair_of_place(top, Kind.MAX, row[0], self.weighed[row])
        place = ir.Op(value.dims, value.dtype, Operator.PLACE_INDEX, (pair,))
        known = ir.Op(value.dims, "bool", Operator.EQ, (weight, weight))
        return ir.Op(value.dims, value.dtype, Operator.WHERE, (known, place, ir.Const(value.dims, value.dtype, 0)))

    def kind_of_place(self, value: ir.Reduce, x: ir.Value, best: ir.Value) -> Kind | None:
        """Return of which extreme of its own row the index is, or None where it is another's."""
        whole = isinstance(best, ir.Reduce) and best.arg is x and x.dtype == "float32" and not value.guards
        return best.kind if whole and isinstance(best, ir.Reduce) and not best.guards else None

    def place(self, value: ir.Reduce, x: ir.Value, best: ir.Value, index: ir.Value) -> ir.Value | None:
        """Return the index of an extreme as part of a running pair, or None where it is another's."""
        kind = self.kind_of_place(value, x, best)
        found = self.pair_of_place(value, kind, x, index) if kind else None
        return ir.Op(value.dims, value.dtype, Operator.PLACE_INDEX, (found,)) if found else None

    def pair_of_place(self, value: ir.Reduce, kind: Kind, x: ir.Value, index: ir.Value) -> ir.Value:
        """Return an extreme with its index."""
        key = ((x, frozenset(ir.leaves(value.over))), f"{kind}place", value.dims)
        if key not in self.made:
            both = ir.Op(x.dims, PLACE, Operator.PLACED, (rewrite(x, self), index))
            self.made[key] = ir.Reduce(value.dims, PLACE, Kind(f"{kind}place"), both, value.over)
        return self.made[key]

    def pair(self, value: ir.Reduce, x: ir.Value) -> ir.Value:
        key = ((x, frozenset(ir.leaves(value.over))), PAIR, value.dims)
        if key not in self.made:
            self.made[key] = ir.Reduce(value.dims, PAIR, Kind.MAXSUM, rewrite(x, self), value.over)
        return self.made[key]


def softmax_of(value: ir.Value) -> tuple[ir.Reduce, ir.Reduce] | None:
    """Return the maximum and the sum of exp(x - maximum) / sum, where all are of one row."""
    found = operands(value, Operator.DIV)
    power = exponential_below(found[0]) if found else None
    if not found or not power or power[0].dtype != "float32":
        return None
    top, total = strip(power[1]), strip(found[1])
    if not isinstance(top, ir.Reduce) or not isinstance(total, ir.Reduce) or top.guards or total.guards:
        return None
    alike = top.kind is Kind.FASTMAX and top.arg is power[0] and total.kind is Kind.SUM and total.arg is found[0]
    return (top, total) if alike and row_of(top)[1] == row_of(total)[1] else None


def bytes_of(value: ir.Reduce) -> int:
    """Return how many bytes a row has in memory, in the narrowest tensor that it is computed from."""
    over = set(ir.leaves(value.over))
    loads = [v for v in ir.walk(value.arg) if isinstance(v, ir.Load) and ir.tree_atoms(v) & over]
    return ir.size_of(value.over) * min((ITEMSIZE.get(v.storage, 4) for v in loads), default=4)


def row_of(value: ir.Reduce) -> Row:
    """Return the row that a reduction runs over: its argument, and its loops."""
    return value.arg, frozenset(ir.leaves(value.over))
