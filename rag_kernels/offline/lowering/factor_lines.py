"""Factors of matrix products that lie in lines: what the copy engine reads, and what others are copied to first.

Comes in: a rule of a product. Goes out: the rule, before which a factor whose elements lie scattered (patches of an
image, rows at computed places) is stored as a matrix. A product reads each element of a factor for every tile of the
other one; gathered, it took three times as long.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from rag_kernels.eval.records import Node, Ref
from rag_kernels.eval.traits.aten import base_name
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.patterns import strip
from rag_kernels.offline.lowering.lower import Entry, Lowering, Rule

WIDE, TALL, LARGE = 64, 128, 1 << 18  # results of a line, lines, and elements of a factor that is worth a copy


def with_factors_in_lines(rule: Rule) -> Rule:
    """Return the rule of a product of matrices that finds its factors in lines."""

    def chosen(lowering: Lowering, node: Node) -> ir.Value | tuple[ir.Value, ...]:
        names = [name for name in node.args[:2] if isinstance(name, Ref)]
        if len(names) == 2 and math.prod(node.outputs[0].shape[:-1]) >= TALL and node.outputs[0].shape[-1] >= WIDE:
            right = lowering.value(names[1])
            flat = base_name(node.op) == "linear" or len(right.dims) == 2
            lay(lowering, names[0], together=flat)
            lay(lowering, names[1], together=len(right.dims) == 2)
        return rule(lowering, node)

    return chosen


def lay(lowering: Lowering, name: Ref, *, together: bool) -> None:
    """Store a factor as a matrix if it lies scattered; `together` says that all dimensions but the last are lanes."""
    value = lowering.value(name)
    load, lanes = strip(value), value.dims[:-1] if together else value.dims[-2:-1]
    if not isinstance(load, ir.Load) or len(value.dims) < 2 or math.prod(value.shape) < LARGE:
        return
    if not in_lines(load, ir.leaves(a for group in lanes for a in group), ir.leaves(value.dims[-1])):
        lowering.env[name.name] = Entry((as_matrix(lowering, value, load),), dtype=load.storage)


def as_matrix(lowering: Lowering, value: ir.Value, load: ir.Load) -> ir.Value:
    """Return a factor read from a copy, in which that dimension lies innermost whose elements are neighbours now.

    So a factor and its transpose are one copy: products take either order.
    """
    steps, order = steps_of(load) or {}, [*range(len(value.dims))]
    near = [d for d in order if any(steps.get(leaf) == 1 for leaf in ir.leaves(value.dims[d]))]
    order.sort(key=lambda d: d in near)
    found = lowering.reload_laid(lowering.with_dims(value, tuple(value.dims[d] for d in order)), load.storage)
    return lowering.with_dims(found, tuple(found.dims[order.index(d)] for d in range(len(order))))


def in_lines(load: ir.Load, lanes: Iterable[ir.Atom], terms: Iterable[ir.Atom]) -> bool:
    """Return whether lanes are one step apart, terms too, and one of these steps is that to a neighbour."""
    steps = steps_of(load)
    if steps is None:
        return False
    each = [common_step(steps, group) for group in (lanes, terms)]
    return all(each) and 1 in each


def steps_of(load: ir.Load) -> dict[ir.Atom, int] | None:
    """Return by how many elements each loop steps at this problem's sizes; None where places are computed."""
    steps = dict[ir.Atom, int]()
    for d, index in enumerate(load.index):
        if not isinstance(index, ir.Form):
            return None
        inner = ir.size_of(atom for group in load.stored[d + 1 :] for atom in group)
        for atom, factor in index.terms:
            parts = atom.leaves()
            for i, leaf in enumerate(parts):
                steps[leaf] = steps.get(leaf, 0) + factor * inner * ir.size_of(parts[i + 1 :])
    return steps


def common_step(steps: dict[ir.Atom, int], loops: Iterable[ir.Atom]) -> int:
    """Return the step of the last of these loops if one index can run through all of them, or 0."""
    last = inside = 0
    for loop in reversed([*loops]):
        step = steps.get(loop, 0)
        if last and step != last * inside:
            return 0
        last, inside = (last, inside * loop.size) if last else (step, loop.size)
    return last
