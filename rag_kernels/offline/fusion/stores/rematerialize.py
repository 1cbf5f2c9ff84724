"""The choice between loading a stored value again and computing it again (rematerialization).

Comes in: the steps of `lowering/lower.py`, in which a value that was stored for one operator is still an expression for
the others. Goes out: the same steps with loads of it, wherever the new value also needs what was made after it was
stored: then it cannot be computed beside it. The sum of a residual block is loaded so, and does not become the sums of
all blocks before. What is worth it is stored to be read so: the state of a recurrent cell, which the library's products
part from its next step, is not computed from the first step on each time. Knows nothing of languages.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod

from rag_kernels.eval.records import TensorSpec
from rag_kernels.offline.fusion.loops import reductions
from rag_kernels.offline.fusion.sums.products import tile_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import ITEMSIZE
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.rewriting import rebuilt
from rag_kernels.offline.lowering.steps import Lowered, Scattered, Step, Stored, made_by, with_values

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
    seen = set[ir.Value]()  # since the last library call

    def is_new(value: ir.Value) -> bool:
        return value not in now

    for step in steps:
        if isinstance(step, Stored):
            found |= dict.fromkeys(_shared(step.value, before, kept, seen))
            now |= set(ir.walk(step.value, enter=is_new))
        else:
            before |= now
            seen = set()
    return list(found)


def _shared(value: ir.Value, before: set[ir.Value], kept: set[ir.Value], seen: set[ir.Value]) -> list[ir.Value]:
    """Return what is worth storing of a value that was there before; none of what it would be computed from then, and
    none of what was `seen`, to which this is added.
    """

    def ends(v: ir.Value) -> bool:
        return v in before and (strip(v) in kept or _is_worth_a_tensor(v))

    reached = [v for v in ir.walk(value, enter=lambda v: v not in seen and not ends(v)) if v not in seen]
    seen.update(reached)
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
    """Return the steps with loads in place of costly values that an earlier step stores, and no scatter changes."""
    reader = _Reader()
    steps: list[Step] = []
    changed = {step.buffer for step in lowered.steps if isinstance(step, Scattered)}
    for place, step in enumerate(lowered.steps):
        if isinstance(step, Stored):
            steps.append(replace(step, value=reader.read(step.value)))
            reader.write(step.buffer, place)
            if step.slot is None and is_whole(step.value) and is_costly(step.value) and step.buffer not in changed:
                reader.keep(step)
        else:
            steps.append(with_values(step, reader.read_whole if isinstance(step, Scattered) else reader.read))
            for buffer in made_by(step):
                reader.write(buffer, place)
    return replace(lowered, steps=tuple(steps))


_Seen = dict[ir.Value, tuple[ir.Value, frozenset[str]]]
EVERY = sys.maxsize  # more than there are steps


@dataclass(slots=True)
class _Reader:
    """Replaces stored values by loads.

    `made` keeps values that several steps have in common one object: a reduction of theirs is computed once. `seen`
    has by `last` what became of values without reductions since the last one was stored, with what that reads:
    steps of a long chain look at what they add alone.
    """

    places: dict[str, int] = field(default_factory=dict)  # of the step that makes a buffer
    stored: dict[ir.Value, Stored] = field(default_factory=dict)  # by costly value
    kept: set[str] = field(default_factory=set)  # the buffers of these
    made: dict[tuple[ir.Value, frozenset[str]], ir.Value] = field(default_factory=dict)
    seen: dict[int, _Seen] = field(default_factory=dict)
    buffers: dict[ir.Value, frozenset[str]] = field(default_factory=dict)  # that a value reads

    def write(self, buffer: str, place: int) -> None:
        """Take note of the step that writes a buffer, perhaps not the first one."""
        if buffer in self.kept:
            self.seen.clear()
        self.places[buffer] = place

    def keep(self, step: Stored) -> None:
        """Let values of later steps read this one's."""
        self.stored[strip(step.value)] = step
        self.kept.add(step.buffer)
        self.seen.clear()

    def read(self, value: ir.Value) -> ir.Value:
        """Return the value with loads of what is stored, if it also needs what was made from then on.

        If it does not, then with loads of what was stored before the last tensor that it needs.
        """
        last = max((self.places.get(buffer, -1) for buffer in self.read_of(value)), default=-1)
        replaced, read = self.loading(value, EVERY)
        if min((self.places[buffer] for buffer in read), default=0) <= last:
            return replaced
        return self.loading(value, last)[0]

    def read_whole(self, value: ir.Value) -> ir.Value:
        """Return the value as a load if it is stored, else with loads of what is: a kernel of its own takes it."""
        step = self.stored.get(strip(value))
        return load_of(step, value) if step else self.loading(value, EVERY)[0]

    def loading(self, value: ir.Value, last: int) -> tuple[ir.Value, frozenset[str]]:
        """Return the value with loads of what the steps up to number `last` stored, and their buffers.

        What has a product in tiles and is read by a reduction over its elements is loaded whenever it was stored: the
        product would be computed again, in another nest.
        """
        chain = not ir.outermost(value) and strip(value) not in self.stored
        seen = self.seen.setdefault(last, {}) if chain else {}
        reduced = {w for v in reductions(value) for w in ir.walk(v) if w is not v}

        def load(v: ir.Value) -> tuple[ir.Value, frozenset[str]] | None:
            below = strip(v)
            if below not in self.stored or below is strip(value):
                return None
            step = self.stored[below]
            again = v in reduced and any(tile_of(w) for w in ir.walk(below))
            if self.places[step.buffer] > last and not again:
                return None
            return load_of(step, v), frozenset([step.buffer])

        def visit(v: ir.Value) -> ir.Value:
            if v not in seen:
                found = load(v)
                if found is None:
                    new = rebuilt(v, visit)
                    found = new, frozenset[str]().union(*(seen[child][1] for child in ir.children(v)))
                new, reads = found
                seen[v] = (new if new is v else self.made.setdefault((v, reads), new)), reads
            return seen[v][0]

        return visit(value), seen[value][1]

    def read_of(self, value: ir.Value) -> frozenset[str]:
        """Return the buffers of all loads in a value."""
        for v in ir.walk(value, enter=lambda v: v not in self.buffers):
            if v not in self.buffers:
                own = [v.buffer] if isinstance(v, ir.Load) else []
                self.buffers[v] = frozenset(own).union(*(self.buffers[child] for child in ir.children(v)))
        return self.buffers[value]


def load_of(step: Stored, value: ir.Value) -> ir.Load:
    """Return the load of a value that a step stores."""
    dims = tuple(_as_one(group) for group in step.value.dims)
    forms = tuple(ir.Form(tuple((atom, 1) for atom in group)) for group in dims)
    return ir.Load(value.dims, value.dtype, step.buffer, dims, forms, step.spec.dtype)


def is_whole(value: ir.Value) -> bool:
    """Return whether no dimension is expanded: a reader of the value itself has no loop over such a one."""
    return {atom for group in value.dims for atom in ir.leaves(group)} <= ir.tree_atoms(value)


def _as_one(group: ir.Group) -> ir.Group:
    """Return a group as one loop: a dimension of a stored tensor is one, though several may run over it."""

    def joined(outer: ir.Atom, inner: ir.Atom) -> ir.Atom:
        return ir.Atom(outer.size * inner.size, parts=(outer, inner))

    return (reduce(joined, ir.leaves(group)),) if group else ()


def is_costly(value: ir.Value) -> bool:
    """Return whether computing a value again costs more than reading it.

    It does for a reduction, and for a value of several tensors of its size.
    """
    inside = list(ir.walk(value))
    loads = {v.buffer for v in inside if isinstance(v, ir.Load) and prod(v.shape) >= prod(value.shape)}
    return len(loads) > 1 or any(isinstance(v, ir.Reduce | ir.Scan) for v in inside)
