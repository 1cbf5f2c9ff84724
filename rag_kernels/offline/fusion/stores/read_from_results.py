"""Products that are stored to be read again, and are results besides: they are read where they are results.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps without the second of two that store a product, in
other orders of its dimensions: a training step saves the queries of which it makes rotated ones for each head, and
would compute their product once for either. What lies side by side stays so.
"""

from __future__ import annotations

from dataclasses import replace

from rag_kernels.offline.fusion.sums.products import tile_of
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.ir.rewriting import rewrite
from rag_kernels.offline.lowering.steps import Lowered, Step, Stored, values_of, with_values

LEAST = 32  # elements side by side that a nest reads anywhere


def with_products_read_from_results(lowered: Lowered) -> Lowered:
    """Return the steps in which a product that is a result, too, is stored once."""
    place = 0
    while place < len(lowered.steps):
        step = lowered.steps[place]
        if isinstance(step, Stored) and (result := _result_like(step, lowered, place)):
            order = _order(step.value, result.value)
            if order and all(isinstance(s, Stored) for s in lowered.steps if _reads(s, step.buffer)):
                lowered = _read_there(lowered, place, result, order)
        place += 1
    return lowered


def _result_like(step: Stored, lowered: Lowered, place: int) -> Stored | None:
    """Return the step behind this one that stores the same product as a result, in the same dtype."""
    value = strip(step.value)
    if step.slot or step.buffer in lowered.results or not isinstance(value, ir.Reduce) or not tile_of(value):
        return None
    behind = lowered.steps[place + 1 :]
    found = [s for s in behind if isinstance(s, Stored) and s.buffer in lowered.results and not s.slot]
    return next((s for s in found if strip(s.value) is value and s.spec.dtype == step.spec.dtype), None)


def _order(value: ir.Value, result: ir.Value) -> tuple[int, ...] | None:
    """Return in which order a result has the dimensions of a value, if the last ones are the same; else None."""
    groups, order = [ir.leaves(group) for group in value.dims], list[int]()
    left = tuple(leaf for group in result.dims for leaf in ir.leaves(group))
    while left:
        found = [d for d, group in enumerate(groups) if group and group == left[: len(group)] and d not in order]
        if not found:
            return None
        order.append(found[0])
        left = left[len(groups[found[0]]) :]
    last = max((d for d, group in enumerate(groups) if group), default=None)
    alike = bool(order) and order[-1] == last and ir.size_of(groups[order[-1]]) >= LEAST
    return tuple(order) if alike and len(order) == sum(map(bool, groups)) else None


def _reads(step: Step, buffer: str) -> bool:
    if not (values := values_of(step)):  # PyTorch's own operator
        return True
    return any(isinstance(v, ir.Load) and v.buffer == buffer for v in ir.walk(*values))


def _read_there(lowered: Lowered, place: int, result: Stored, order: tuple[int, ...]) -> Lowered:
    """Return the steps with the result in the place of what was stored, whose readers read it in its order."""
    step = lowered.steps[place]
    assert isinstance(step, Stored)
    stored = tuple(ir.leaves(step.value.dims[d]) for d in order)

    def read(value: ir.Value) -> ir.Value | None:
        if not isinstance(value, ir.Load) or value.buffer != step.buffer:
            return None
        return replace(value, buffer=result.buffer, stored=stored, index=tuple(value.index[d] for d in order))

    others = [result if n == place else s for n, s in enumerate(lowered.steps) if s is not result]
    steps = tuple(s if s is result else with_values(s, lambda v: rewrite(v, read)) for s in others)
    return replace(lowered, steps=steps)
