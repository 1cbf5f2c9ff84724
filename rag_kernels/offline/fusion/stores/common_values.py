"""Values that are alike become one, so that a kernel computes each once.

Comes in: a region. Goes out: the region with values of the same operator over the same values shared, whichever rule
or pass made them: the maximum of a softmax and the maximum that a loss stores, or the same reciprocal twice. Only a
stored value keeps its own list of dimensions. The planner asks so for what one nest stores and another would store
again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field, replace

from rag_kernels.offline.fusion.regions import (
    AttentionRegion,
    ChainedRegion,
    OrderRegion,
    RecurrentRegion,
    Region,
    ScatterRegion,
    SegmentRegion,
)
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.rewriting import rebuilt
from rag_kernels.offline.lowering.steps import with_values


def shared(region: Region) -> Region:
    """Return the region in which no two values are alike."""
    found = Shared()
    match region:
        case AttentionRegion() | RecurrentRegion():
            return region
        case ChainedRegion(chained=step):
            for inner in step.inner:
                found.root(inner.product)  # the first of its kind: it stays itself
            outer = [replace(o, weight=found.root(o.weight)) for o in step.outer]
            return ChainedRegion.of(replace(step, outer=tuple(outer)))
        case ScatterRegion():
            return ScatterRegion.of(*(with_values(step, found.root) for step in region.every))
        case OrderRegion(ordered=step):
            again = OrderRegion.of(with_values(step, found.root))
            return replace(again, stores={buffer: again.stores[buffer] for buffer in region.stores})
        case SegmentRegion(segmented=step):
            return SegmentRegion.of(with_values(step, found.root))
    return replace(region, stores={buffer: found.root(value) for buffer, value in region.stores.items()})


@dataclass(slots=True)
class Shared:
    """The first value of each kind, and what each visited value became; `laid`: kinds are told apart by dimensions."""

    laid: bool = False
    first: dict[Hashable, ir.Value] = field(default_factory=dict)
    made: dict[ir.Value, ir.Value] = field(default_factory=dict)

    def root(self, value: ir.Value) -> ir.Value:
        """Return a stored value: the shared one, with the dimensions along which it is stored."""
        for v in ir.walk(value, enter=lambda v: v not in self.made):  # no recursion: chains of steps are deep
            if v not in self.made:
                self.made[v] = self.first_of(rebuilt(v, self.made.__getitem__))
        found = self.made[value]
        alike = [ir.leaves(group) for group in found.dims] == [ir.leaves(group) for group in value.dims]
        return found if alike else ir.Op(value.dims, value.dtype, Operator.SAME, (found,))

    def first_of(self, value: ir.Value) -> ir.Value:
        """Return the first value that is like this one, whose arguments are first ones."""
        laid = tuple(map(ir.leaves, value.dims)) if self.laid else ()
        return self.first.setdefault((_key(value), laid), value)

    def read(self, value: ir.Value, loaded: Callable[[ir.Value], ir.Value | None]) -> ir.Value:
        """Return a stored value in which all is loaded that is like what is, as it was or with its parts loaded."""
        value = self.root(value)
        made: dict[ir.Value, ir.Value] = {}
        for v in ir.walk(value, enter=lambda v: loaded(v) is None):
            found = loaded(v)
            if found is None:
                again = rebuilt(v, made.__getitem__)
                first = v if again is v else self.first_of(again)
                found = loaded(first) or first
            made[v] = found
        return made[value]


def _key(value: ir.Value) -> Hashable:
    """Return what two values have in common that are the same number at every step of the loops."""
    match value:
        case ir.Const():
            return "const", value.dtype, value.name or repr(value.number)
        case ir.Size():
            return "size", value.dtype, ir.leaves(value.group)
        case ir.Op(operator=Operator.SAME):
            return value
        case ir.Op():
            return "op", value.operator, value.dtype, tuple(map(strip, value.args))
        case ir.Index(limit=limit):
            return "index", value.dtype, _form(value.form), limit and ir.leaves(limit), value.every
        case ir.Load():
            stored = tuple(map(ir.leaves, value.stored))
            return "load", value.buffer, stored, tuple(_form(i) if isinstance(i, ir.Form) else i for i in value.index)
        case ir.Reduce():
            over = frozenset(ir.leaves(value.over))
            own = value.guards, value.rounded, value.grouped, value.apart
            return "reduce", value.kind, value.dtype, strip(value.arg), over, own
        case ir.Scan():
            return "scan", value.kind, value.dtype, strip(value.arg), value.over.leaves()
        case _:
            return value


def _form(form: ir.Form) -> Hashable:
    terms = frozenset((atom.leaves(), factor) for atom, factor in form.terms)
    return terms, form.offset, tuple((ir.leaves(group), factor) for group, factor in form.sizes)
