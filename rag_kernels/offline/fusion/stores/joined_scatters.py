"""Scatters one behind another into one tensor: they go on where the one before ended, and one nest does them all.

Comes in: the steps of `lowering/lower.py`, then those of the planner. Goes out: the same steps, in which a scatter of
what another one made, if it is all that reads that, joins there without a copy; then scatters of the same loops are one
region. So a particle leaves its mass at the nodes around it, by as many calls of `index_add`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace

from rag_kernels.offline.fusion.loops import loops_of
from rag_kernels.offline.fusion.regions import Region, ScatterRegion, reads_of
from rag_kernels.offline.graph.nodes import refs
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.steps import (
    Attended,
    Library,
    Lowered,
    Scattered,
    Step,
    Stored,
    values_of,
    with_values,
)

FEW_PLACES = 2048  # fewer are joined in shared memory, by a kernel for one scatter
SHORT = 4  # steps of a loop that is no row of neighbours, which vectors would take


def with_scatters_in_place(lowered: Lowered) -> Lowered:
    """Return the steps without copies of what a scatter made, where the next scatter is all that reads it."""
    readers = Counter(buffer for step in lowered.steps for buffer in read_by(step))
    made: dict[str, tuple[ir.Group, ...]] = {}  # by scatters: along which loops it lies
    last: dict[str, str] = {}  # what a scatter made -> the buffer in which the next one goes on
    first: dict[tuple[ir.Atom, ...], ir.Group] = {}  # loops of such a buffer -> those of the first of its chain
    steps = list[Step]()
    for step in lowered.steps:
        base = copied(step)
        if isinstance(step, Stored) and base in made and readers[base] == 1 and base not in lowered.results:
            last[base] = step.buffer
            first |= dict(zip(map(ir.leaves, step.value.dims), made[base], strict=True))
            continue
        if isinstance(step, Scattered):
            step = along(step, first) if first else step
            made[step.buffer] = step.dims
        steps.append(step)
    return replace(lowered, steps=tuple(renamed(step, last) for step in steps)) if last else lowered


def along(step: Scattered, first: Mapping[tuple[ir.Atom, ...], ir.Group]) -> Scattered:
    """Return a scatter with the sizes of what it goes on with by the loops along which that was begun."""

    def change(value: ir.Value) -> ir.Value | None:
        group = first.get(ir.leaves(value.group)) if isinstance(value, ir.Size) else None
        return replace(value, group=group) if group and isinstance(value, ir.Size) else None

    dims = tuple(first.get(ir.leaves(group), group) for group in step.dims)
    return replace(with_values(step, lambda value: rewrite(value, change)), dims=dims)


def read_by(step: Step) -> set[str]:
    """Return the buffers that a step reads."""
    if isinstance(step, Library):
        return {*refs(step.node.args), *refs(tuple(v for _, v in step.node.kwargs))}
    values = (*values_of(step), *([step.score] if isinstance(step, Attended) else []))
    return {v.buffer for v in ir.walk(*values) if isinstance(v, ir.Load)}


def copied(step: Step) -> str:
    """Return the buffer of which a step stores a copy, element by element; "" where it does another thing."""
    value = strip(step.value) if isinstance(step, Stored) and step.slot is None else None
    if not isinstance(step, Stored) or not isinstance(value, ir.Load):
        return ""
    forms = tuple(ir.Form(tuple((leaf, 1) for leaf in ir.leaves(group))) for group in step.value.dims)
    read = tuple(
        ir.Form(tuple((leaf, n) for a, n in i.terms for leaf in a.leaves()), i.offset, i.sizes)
        if isinstance(i, ir.Form)
        else i
        for i in value.index
    )
    return value.buffer if read == forms and value.storage == step.spec.dtype == value.dtype else ""


def renamed(step: Step, last: dict[str, str]) -> Step:
    """Return a step that writes what the last scatter of its chain goes on with."""
    if not isinstance(step, Stored | Scattered):
        return step
    name = step.buffer
    while name in last:
        name = last[name]
    return replace(step, buffer=name)


def with_scatters_joined(steps: list[Region | Library]) -> list[Region | Library]:
    """Return the steps with scatters of the same loops into one buffer as one region, where nothing is in between."""
    out = list[Region | Library]()
    for step in steps:
        place = place_before(out, step) if isinstance(step, ScatterRegion) and is_apart(step.scattered) else None
        if place is None:
            out.append(step)
            continue
        first = out[place]
        assert isinstance(first, ScatterRegion) and isinstance(step, ScatterRegion)
        out[place] = ScatterRegion.of(*first.every, *step.every)
    return out


def place_before(steps: list[Region | Library], step: ScatterRegion) -> int | None:
    """Return the place of an earlier scatter that a scatter may be one with; None where something must stay between."""
    for place in range(len(steps) - 1, -1, -1):
        other = steps[place]
        if isinstance(other, ScatterRegion) and alike(other.scattered, step.scattered):
            return place
        if isinstance(other, Library) or step.written.keys() & (reads_of(other) | other.written.keys()):
            return None
        if reads_of(step) & other.written.keys():
            return None
    return None


def alike(one: Scattered, other: Scattered) -> bool:
    """Return whether two scatters join one buffer from the same loops in the same way."""
    same = one.buffer == other.buffer and one.kind is other.kind is not None
    return same and set(loops_of(one.value)) == set(loops_of(other.value))


def is_apart(scattered: Scattered) -> bool:
    """Return whether a scatter has neither rows of neighbours, nor so few places that they fit in shared memory."""
    own = [form.terms for form in scattered.places if isinstance(form, ir.Form)]
    short = all(a.size < SHORT for terms in own for a, _ in terms)
    return short and ir.size_of(leaf for group in scattered.dims for leaf in group) > FEW_PLACES
