"""Values that are stored anyway are stored before the first scatter that takes them.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps, perhaps in another order. A scatter is a kernel of
its own, which would compute its elements again: the gradient of an edge, of what two nodes have and the edge itself,
goes to both nodes and to the weights of the edge's layer. Knows nothing of what then reads what.
"""

from __future__ import annotations

from dataclasses import replace

from rag_kernels.offline.fusion.stores.joined_scatters import read_by
from rag_kernels.offline.fusion.stores.rematerialize import is_costly, is_whole
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.lowering.steps import Lowered, Scattered, Step, Stored, made_by, values_of


def with_stores_sooner(lowered: Lowered) -> Lowered:
    """Return the steps with values stored before the first scatter that takes them, where what they need is made."""
    steps = list(lowered.steps)
    place = 0
    while place < len(steps):
        step = steps[place]
        if isinstance(step, Scattered):
            for other in wanted(step, steps[place + 1 :]):
                steps.remove(other)
                steps.insert(place, other)
                place += 1
        place += 1
    return replace(lowered, steps=tuple(steps))


def wanted(scatter: Scattered, later: list[Step]) -> list[Stored]:
    """Return the later steps that store a costly value which a scatter takes, if no step in between makes what they
    read or writes where they do.
    """
    inside, found = {*map(strip, ir.walk(*values_of(scatter)))}, list[Stored]()
    made = {*made_by(scatter)}
    for step in later:
        if isinstance(step, Stored) and is_one_of(inside, step) and not made & {step.buffer, *read_by(step)}:
            found.append(step)
        else:
            made.update(made_by(step))
    return found


def is_one_of(values: set[ir.Value], step: Stored) -> bool:
    """Return whether a step stores one of these values, which is dear to compute again."""
    return step.slot is None and strip(step.value) in values and is_whole(step.value) and is_costly(step.value)
