"""The choice between loading a stored value again and computing it again (rematerialization).

Comes in: the steps of `lowering/lower.py`, in which a value that was stored for one operator is still an expression for
the others. Goes out: the same steps with loads of it, wherever the new value also needs what was made after it was
stored: then it cannot be computed beside it. The sum of a residual block is loaded so, and does not become the sums of
all blocks before. Knows nothing of languages.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import reduce
from math import prod

from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.rewriting import rebuilt
from rag_kernels.offline.lowering.lower import Lowered, Step, Stored, made_by, with_values


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
        """Return the value with loads of what is stored, if it also needs what was made from then on."""
        reads: dict[ir.Value, frozenset[str]] = {}

        def load(v: ir.Value) -> ir.Value | None:
            below = strip(v)
            if below not in self.stored or below is strip(value):
                return None
            step = self.stored[below]
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
        replaced = visit(value)
        made = min((self.places[buffer] for buffer in reads[value]), default=0)
        loads = {v.buffer for v in ir.walk(value) if isinstance(v, ir.Load)}
        return replaced if any(self.places.get(buffer, -1) >= made for buffer in loads) else value


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
