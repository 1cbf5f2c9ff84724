"""Values that are stored anyway are read where they are needed later, instead of computed again.

Comes in: the steps of `lower.py`, in which a value that was stored for one operator is still an expression for the
others. Goes out: the same steps with loads of it, wherever the new value also needs what was made after it was stored:
then it cannot be computed beside it. The sum of a residual block is read so, and does not become the sums of all blocks
before. Knows nothing of regions.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from math import prod

from rag_kernels.offline import ir
from rag_kernels.offline.lower import Lowered, Step, Stored
from rag_kernels.offline.regions import rewrite, strip


def with_rereads(lowered: Lowered) -> Lowered:
    places: dict[str, int] = {}  # of the step that makes a buffer
    stored: dict[int, Stored] = {}  # costly values by identity
    steps: list[Step] = []
    for place, step in enumerate(lowered.steps):
        if isinstance(step, Stored):
            steps.append(replace(step, value=_read(step.value, stored, places)))
            places[step.buffer] = place
            if step.slot is None and _is_costly(step.value):
                stored[id(strip(step.value))] = step
        else:
            steps.append(step)
            places[step.node.name] = place
    return replace(lowered, steps=tuple(steps))


def _read(value: ir.Value, stored: dict[int, Stored], places: dict[str, int]) -> ir.Value:
    read: set[str] = set()

    def load(v: ir.Value) -> ir.Value | None:
        below = strip(v)
        if id(below) not in stored or below is strip(value):
            return None
        whole = stored[id(below)]
        read.add(whole.buffer)
        dims = tuple(_as_one(group) for group in whole.value.dims)
        forms = tuple(ir.Form(tuple((atom, 1) for atom in group)) for group in dims)
        return ir.Load(v.dims, v.dtype, whole.buffer, dims, forms)

    replaced = rewrite(value, load)
    made = min((places[buffer] for buffer in read), default=0)
    later = {v.buffer for v in ir.walk(value) if isinstance(v, ir.Load) and places.get(v.buffer, -1) >= made}
    return replaced if later else value


def _as_one(group: ir.Group) -> ir.Group:
    """A dimension of a tensor is one loop, though several may run over it."""
    def joined(outer: ir.Atom, inner: ir.Atom) -> ir.Atom:
        return ir.Atom(outer.size * inner.size, parts=(outer, inner))

    return (reduce(joined, ir.leaves(group)),) if group else ()


def _is_costly(value: ir.Value) -> bool:
    """Whether it takes more to compute it again than to read it: a reduction, or several tensors of its size."""
    inside = list(ir.walk(value))
    loads = {v.buffer for v in inside if isinstance(v, ir.Load) and prod(v.shape) >= prod(value.shape)}
    return len(loads) > 1 or any(isinstance(v, ir.Reduce | ir.Scan) for v in inside)
