"""Reductions that need two passes over a row, rewritten to one, for rows too long to be kept.

Comes in: values. Goes out: values in which mean and variance come from a sum and a sum of squares, both in double, and
a softmax's maximum and sum from running pairs (Milakov & Gimelshein, "Online normalizer calculation for softmax",
2018). Rows that a kernel can keep are left alone: there a second pass costs nothing and rounds less. An extreme and
its index are one pair, too, in rows of any length. The rewrites recognise reductions by their C templates.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from rag_kernels.offline.fusion.regions import rewrite
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.lowering.lower import Lowered, Stored
from rag_kernels.offline.lowering.rules_reduce import HIT

CENTRED, MEAN, EXPONENTIAL = "({0} - {1}) * ({0} - {1})", "{0} / {1}", "rk_exp({0} - {1})"
ABOUT_MEAN = "{T}({0} < {1} * {1} / {2} ? 0.0 : {0} - {1} * {1} / {2})"
IN_DOUBLE, SQUARE_IN_DOUBLE = "double({0})", "double({0}) * double({0})"
PAIR, PLACE = "maxsum", "place"

Row = tuple[ir.Value, frozenset[ir.Atom]]  # what is reduced, and over which loops


def one_pass(lowered: Lowered, kept: int) -> Lowered:
    """Return the steps with values rewritten to one pass over the data, where rows have more than `kept` bytes."""
    stored = [step for step in lowered.steps if isinstance(step, Stored)]
    change = _OnePass(kept)
    change.collect([step.value for step in stored])
    steps = tuple(replace(s, value=rewrite(s.value, change)) if isinstance(s, Stored) else s for s in lowered.steps)
    return replace(lowered, steps=steps)


@dataclass(slots=True)
class _OnePass:
    """Replaces reductions of long rows by their one-pass forms; `collect` finds the rows first."""

    kept: int  # bytes of the longest row that a kernel keeps
    counts: dict[Row, ir.Group] = field(default_factory=dict)  # rows with a variance, and what a mean divides by
    tops: set[Row] = field(default_factory=set)  # rows with a softmax's sum
    made: dict[tuple[Row, str], ir.Reduce] = field(default_factory=dict)

    def collect(self, values: Iterable[ir.Value]) -> None:
        for v in ir.walk(*values):
            if not isinstance(v, ir.Reduce) or v.kind != "sum" or not isinstance(v.arg, ir.Op) or v.guards:
                continue
            row = self.inner(v)
            if row is None or bytes_of(v) <= self.kept:
                continue
            second = v.arg.args[1]
            if v.arg.template == EXPONENTIAL:
                self.tops.add(row)
            elif isinstance(second, ir.Op) and isinstance(second.args[1], ir.Size):
                self.counts[row] = second.args[1].group

    def inner(self, value: ir.Reduce) -> Row | None:
        """Return the row whose mean or maximum a reduction depends on.

        These are sums of squares about the mean, and of exponentials below the maximum; None for any other.
        """
        assert isinstance(value.arg, ir.Op)
        if value.arg.template not in (CENTRED, EXPONENTIAL):
            return None
        first, second = value.arg.args
        if value.arg.template == CENTRED and isinstance(second, ir.Op) and second.template == MEAN:
            below, kind = second.args[0], "sum"
        else:
            below, kind = second, "fastmax"
        if isinstance(below, ir.Reduce) and below.kind == kind and below.arg is first and not below.guards:
            row = row_of(below)
            return row if row[1] == row_of(value)[1] else None
        return None

    def __call__(self, value: ir.Value) -> ir.Value | None:
        if not isinstance(value, ir.Reduce) or value.guards:
            return None
        row = row_of(value)
        if value.kind == "sum" and row in self.counts:
            return ir.Op(value.dims, value.dtype, "{T}({0})", (self.total(value, value.arg, IN_DOUBLE),))
        if value.kind == "fastmax" and row in self.tops:
            return ir.Op(value.dims, value.dtype, "{0}.top", (self.pair(value, value.arg),))
        if value.kind == "min" and isinstance(value.arg, ir.Op) and value.arg.template == HIT:
            return self.place(value, value.arg)
        below = self.inner(value) if value.kind == "sum" and isinstance(value.arg, ir.Op) else None
        if below is None or not isinstance(value.arg, ir.Op):
            return None
        x = value.arg.args[0]
        if value.arg.template == EXPONENTIAL and below in self.tops:
            return ir.Op(value.dims, value.dtype, "{T}({0}.sum)", (self.pair(value, x),))
        if value.arg.template == CENTRED and below in self.counts:
            parts = (self.total(value, x, SQUARE_IN_DOUBLE), self.total(value, x, IN_DOUBLE))
            return ir.Op(value.dims, value.dtype, ABOUT_MEAN, (*parts, ir.Size((), "float64", self.counts[below])))
        return None

    def total(self, value: ir.Reduce, x: ir.Value, template: str) -> ir.Value:
        key = ((x, frozenset(ir.leaves(value.over))), template)
        if key not in self.made:
            in_double = ir.Op(x.dims, "float64", template, (rewrite(x, self),))
            self.made[key] = ir.Reduce(value.dims, "float64", "sum", in_double, value.over)
        return self.made[key]

    def place(self, value: ir.Reduce, hit: ir.Op) -> ir.Value | None:
        x, best, index = hit.args
        if not isinstance(best, ir.Reduce) or best.arg is not x or x.dtype != "float32" or value.guards:
            return None
        both = ir.Op(x.dims, PLACE, "Place{{{0}, {1}}}", (rewrite(x, self), index))
        return ir.Op(
            value.dims,
            value.dtype,
            "place_of({0})",
            (ir.Reduce(value.dims, PLACE, f"{best.kind}place", both, value.over),),
        )

    def pair(self, value: ir.Reduce, x: ir.Value) -> ir.Value:
        key = ((x, frozenset(ir.leaves(value.over))), PAIR)
        if key not in self.made:
            self.made[key] = ir.Reduce(value.dims, PAIR, PAIR, rewrite(x, self), value.over)
        return self.made[key]


def bytes_of(value: ir.Reduce) -> int:
    """Return how many bytes a row has in memory, in the narrowest tensor that it is computed from."""
    over = set(ir.leaves(value.over))
    loads = [v for v in ir.walk(value.arg) if isinstance(v, ir.Load) and ir.tree_atoms(v) & over]
    return ir.size_of(value.over) * min((ITEMSIZE.get(v.storage, 4) for v in loads), default=4)


def row_of(value: ir.Reduce) -> Row:
    """Return the row that a reduction runs over: its argument, and its loops."""
    return value.arg, frozenset(ir.leaves(value.over))
