"""Values that stand in a problem's graph and part its inputs in two: thresholds, bounds, targets that are left out.

Comes in: a FunctionalProblem. Goes out: numbers. For the judge and for the reference worker; no torch.
"""

from __future__ import annotations

from collections.abc import Iterator

from rag_kernels.eval.records import FunctionalProblem, Ref, Scalar, Value
from rag_kernels.eval.traits.aten import operator

TARGET, IGNORE_INDEX, IGNORED_BY_DEFAULT = 1, 4, -100  # positions among the arguments of losses, and torch's default
LARGEST = 1e6  # beyond are stand-ins for infinity
MOST_CONSTANTS = 16


def constants_of(fp: FunctionalProblem) -> list[float]:
    """Return the numbers with a fraction in the graph, and the whole ones of what compares or bounds."""
    found: dict[float, None] = {}
    for node in fp.nodes:
        bounds = operator(node.op).parts_inputs
        for value in _scalars((*node.args, *(v for _, v in node.kwargs))):
            if isinstance(value, float) or (bounds and isinstance(value, int) and not isinstance(value, bool)):
                found[float(value)] = None
    return [value for value in found if abs(value) <= LARGEST][:MOST_CONSTANTS]


def _scalars(values: tuple[Value, ...]) -> Iterator[Scalar]:
    for value in values:
        if isinstance(value, tuple):
            yield from _scalars(value)
        elif not isinstance(value, Ref):
            yield value


def ignored_targets(fp: FunctionalProblem) -> dict[str, int]:
    """Return by the name of an argument that a loss takes as class numbers which number it leaves out."""
    found = {}
    names = {a.name for a in fp.tensors if a.spec.dtype == "int64"}
    for node in fp.nodes:
        if operator(node.op).class_numbers and len(node.args) > TARGET:
            target, given = node.args[TARGET], (*node.args, *[None] * IGNORE_INDEX)[IGNORE_INDEX]
            mark = dict(node.kwargs).get("ignore_index", given)
            if isinstance(target, Ref) and target.name in names:
                found[target.name] = mark if isinstance(mark, int) else IGNORED_BY_DEFAULT
    return found
