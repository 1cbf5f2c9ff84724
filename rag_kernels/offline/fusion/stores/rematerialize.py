"""The choice between loading a stored value again and computing it again (rematerialization).

Comes in: the steps of `lowering/lower.py`, in which a value that was stored for one operator is still an expression for
the others. Goes out: the same steps with loads of it, wherever the new value also needs what was made after it was
stored: then it cannot be computed beside it. The sum of a residual block is loaded so, and does not become the sums of
all blocks before. What is worth it is stored to be read so: the state of a recurrent cell, which the library's products
part from its next step, is not computed from the first step on each time. Knows nothing of languages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod

from rag_kernels.eval.records import TensorSpec
from rag_kernels.offline.fusion.sums.products import tile_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.rewriting import rebuilt
from rag_kernels.offline.lowering.steps import Lowered, Step, Stored, made_by, with_values

MANY_LOADS = 3  # tensors of its size that a value is computed from, at which it is stored for a later step


def with_shared_values(lowered: Lowered) -> Lowered:
    """Return the steps with values stored that steps on both sides of a library call compute from many tensors."""
    wanted = _values_again(lowered.steps)
    if not wanted:
        return lowered
    steps: list[Step] = []
    buffers = lowered.buffers
    for step in lowered.steps:
        inside = set(ir.walk(step.value)) if isinstance(step, Stored) else set[ir.Value]()
        for value in [v for v in wanted if v in inside]:
            wanted.remove(value)
            name = f"shared{len(buffers)}"
            while name in buffers:
                name += "_"
            buffers[name] = TensorSpec(value.shape, value.dtype)
            steps.append(Stored(name, value, buffers[name]))
        steps.append(step)
    return replace(lowered, steps=tuple(steps))


def _values_again(steps: Sequence[Step]) -> list[ir.Value]:
    """Return the values worth storing of those that a step has after a library call which an earlier step had too."""
    before, now = set[ir.Value](), set[ir.Value]()
    kept = {strip(step.value) for step in steps if isinstance(step, Stored) and step.slot is None}
    found: dict[ir.Value, None] = {}
    for step in steps:
        if isinstance(step, Stored):
            found |= dict.fromkeys(_shared(step.value, before, kept))
            now |= set(ir.walk(step.value))
        else:
            before |= now
    return list(found)


def _shared(value: ir.Value, before: set[ir.Value], kept: set[ir.Value]) -> list[ir.Value]:
    """Return what is worth storing of a value that was there before; none of what it would be computed from then."""

    def ends(v: ir.Value) -> bool:
        return v in before and (strip(v) in kept or _is_worth_a_tensor(v))

    reached = ir.walk(value, enter=lambda v: not ends(v))
    return [strip(v) for v in reached if ends(v) and strip(v) not in kept]


def _is_worth_a_tensor(value: ir.Value) -> bool:
    """Return whether reading a value is clearly less than computing it again: it is of several tensors of its size."""
    value = strip(value)
    laid = [leaf for group in value.dims for leaf in ir.leaves(group)]
    if not isinstance(value, ir.Op) or value.dtype not in ITEMSIZE or ir.tree_atoms(value) != set(laid):
        return False
    loads = [v for v in ir.walk(value) if isinstance(v, ir.Load) and prod(v.shape) >= prod(value.shape)]
    return len(set(laid)) == len(laid) and len(loads) >= MANY_LOADS


def without_rematerialization(lowered: Lowered) -> Lowered:
    """Return the steps with loads in place of costly values that are stored by an earlier step."""
    reader = _Reader()
    steps: list[Step] = []
    for place, step in enumerate(lowered.steps):
        if isinstance(step, Stored):
            steps.append(replace(step, value=reader.read(step.value)))
            reader.places[step.buffer] = place
            if step.slot is None and _is_whole(step.value) and _is_costly(step.value):
                reader.stored[strip(step.value)] = step
        else:
            steps.append(with_values(step, reader.read))
            reader.places |= dict.fromkeys(made_by(step), place)
    return replace(lowered, steps=tuple(steps))


@dataclass(slots=True)
class _Reader:
    """Replaces stored values by loads.

    `made` keeps values that several steps have in common one object: a reduction of theirs is computed once.
    """

    places: dict[str, int] = field(default_factory=dict)  # of the step that makes a buffer
    stored: dict[ir.Value, Stored] = field(default_factory=dict)  # by costly value
    made: dict[tuple[ir.Value, frozenset[str]], ir.Value] = field(default_factory=dict)

    def read(self, value: ir.Value) -> ir.Value:
        """Return the value with loads of what is stored, if it also needs what was made from then on.

        If it does not, then with loads of what was stored before the last tensor that it needs.
        """
        loads = [self.places.get(v.buffer, -1) for v in ir.walk(value) if isinstance(v, ir.Load)]
        last = max(loads, default=-1)
        replaced, read = self.loading(value, len(self.places))
        if min((self.places[buffer] for buffer in read), default=0) <= last:
            return replaced
        return self.loading(value, last)[0]

    def loading(self, value: ir.Value, last: int) -> tuple[ir.Value, frozenset[str]]:
        """Return the value with loads of what the steps up to `last` stored, and their buffers.

        What has a product in tiles and is read by a reduction over its elements is loaded whenever it was stored: the
        product would be computed again, in another nest.
        """
        reads: dict[ir.Value, frozenset[str]] = {}
        reduced = {w for v in ir.walk(value) if isinstance(v, ir.Reduce | ir.Scan) for w in ir.walk(v) if w is not v}

        def load(v: ir.Value) -> ir.Value | None:
            below = strip(v)
            if below not in self.stored or below is strip(value):
                return None
            step = self.stored[below]
            again = v in reduced and any(tile_of(w) for w in ir.walk(below))
            if self.places[step.buffer] > last and not again:
                return None
            reads[v] = frozenset([step.buffer])
            dims = tuple(_as_one(group) for group in step.value.dims)
            forms = tuple(ir.Form(tuple((atom, 1) for atom in group)) for group in dims)
            return ir.Load(v.dims, v.dtype, step.buffer, dims, forms, step.spec.dtype)

        def visit(v: ir.Value) -> ir.Value:
            if v not in seen:
                new = load(v)
                if new is None:
                    new = rebuilt(v, visit)
                    reads[v] = frozenset().union(*(reads[child] for child in ir.children(v)))
                seen[v] = new if new is v else self.made.setdefault((v, reads[v]), new)
            return seen[v]

        seen: dict[ir.Value, ir.Value] = {}
        return visit(value), reads[value]


def _is_whole(value: ir.Value) -> bool:
    """Return whether no dimension is expanded: a reader of the value itself has no loop over such a one."""
    return {atom for group in value.dims for atom in ir.leaves(group)} <= ir.tree_atoms(value)


def _as_one(group: ir.Group) -> ir.Group:
    """Return a group as one loop: a dimension of a stored tensor is one, though several may run over it."""

    def joined(outer: ir.Atom, inner: ir.Atom) -> ir.Atom:
        return ir.Atom(outer.size * inner.size, parts=(outer, inner))

    return (reduce(joined, ir.leaves(group)),) if group else ()


def _is_costly(value: ir.Value) -> bool:
    """Return whether computing a value again costs more than reading it.

    It does for a reduction, and for a value of several tensors of its size.
    """
    inside = list(ir.walk(value))
    loads = {v.buffer for v in inside if isinstance(v, ir.Load) and prod(v.shape) >= prod(value.shape)}
    return len(loads) > 1 or any(isinstance(v, ir.Reduce | ir.Scan) for v in inside)
