"""Whether the place of a largest or smallest element is one place where several are equal.

Comes in: a FunctionalProblem. Goes out: yes or no. PyTorch documents the first for `argmax`, `argmin`, `max` and `min`
(https://docs.pytorch.org/docs/stable/generated/torch.argmax.html), and none for `topk` or an unstable sort.
"""

from __future__ import annotations

from collections.abc import Iterator

from rag_kernels.eval.aten import operator
from rag_kernels.eval.records import FunctionalProblem, Ref, Value


def first_of_equals(fp: FunctionalProblem) -> bool:
    """Return whether every place that the problem asks for is the first of equals, and of inputs as they are.

    After arithmetic rounding may part what is equal, or make equal what is not.
    """
    found, as_they_are = False, {a.name for a in fp.tensors}
    for node in fp.nodes:
        traits, read = operator(node.op), set(_names((*node.args, *(value for _, value in node.kwargs))))
        if traits.tells_equals_apart:
            if not traits.takes_first or not read <= as_they_are:
                return False
            found = True
        elif read <= as_they_are and (traits.exact or traits.cost == "layout" or node.op == "getitem"):
            as_they_are.add(node.name)
    return found


def _names(values: tuple[Value, ...]) -> Iterator[str]:
    for value in values:
        if isinstance(value, Ref):
            yield value.name
        elif isinstance(value, tuple):
            yield from _names(value)
