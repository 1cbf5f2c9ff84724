"""Values that stand in a problem's graph and part its inputs in two: thresholds, bounds, targets that are left out.

Comes in: a FunctionalProblem. Goes out: numbers. For the judge and for the reference worker; no torch.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from rag_kernels.eval.records import FunctionalProblem, Ref, Scalar, Value
from rag_kernels.eval.traits.aten import base_name, operator

TARGET, IGNORE_INDEX, IGNORED_BY_DEFAULT = 1, 4, -100  # positions among the arguments of losses, and torch's default
LARGEST = 1e6  # beyond are stand-ins for infinity
MOST_CONSTANTS = 16
SCALING, MOST_POWER = frozenset({"mul", "div"}), 256.0


def constants_of(fp: FunctionalProblem) -> list[float]:
    """Return the numbers with a fraction in the graph, and the whole ones of what compares or bounds."""
    found: dict[float, None] = {}
    for node in fp.nodes:
        bounds = operator(node.op).parts_inputs
        for value in _scalars((*node.args, *(v for _, v in node.kwargs))):
            if isinstance(value, float) or (bounds and isinstance(value, int) and not isinstance(value, bool)):
                found[float(value)] = None
    return [value for value in found if abs(value) <= LARGEST][:MOST_CONSTANTS]


def is_exact(value: float) -> bool:
    """Return whether every kind of float that is computed in has a number: it has eight bits at most."""
    return not math.isfinite(value) or float(256 * math.frexp(value)[0]).is_integer()


def parted_by(op: str, given: tuple[object, ...]) -> bool:
    """Return whether an operator's result moves by a step at one of its numbers that floats of 32 bits have not."""
    traits = operator(op)
    if not (traits.parts_inputs and traits.jumps):
        return False
    return any(isinstance(value, float) and not is_exact(value) for value in given)


def moves_at_numbers(fp: FunctionalProblem) -> bool:
    """Return whether something moves by a step at a number of the problem's that has to be rounded for it."""
    return any(parted_by(node.op, (*node.args, *(v for _, v in node.kwargs))) for node in fp.nodes)


def powers_in(fp: FunctionalProblem) -> list[float]:
    """Return the powers of two that elements are multiplied or divided by, none of them far from one."""
    scaled = [value for node in fp.nodes if base_name(node.op) in SCALING for value in _scalars(node.args)]
    sizes = {abs(float(value)) for value in scaled if not isinstance(value, bool | str | None)}
    return sorted(s for s in sizes if 1 / MOST_POWER <= s <= MOST_POWER and math.frexp(s)[0] == 0.5)


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
