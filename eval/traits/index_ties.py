"""Whether the place of a largest or smallest element is one place where several are equal.

Comes in: a FunctionalProblem. Goes out: yes or no. PyTorch documents the first for `argmax`, `argmin`, `max` and `min`
(https://docs.pytorch.org/docs/stable/generated/torch.argmax.html), and none for `topk` or an unstable sort.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, Value
from rag_kernels.eval.traits.aten import base_name, operator

COUNTS = frozenset({"bincount", "count_nonzero", "sum"})  # of whole numbers: how many of something there are


@dataclass(frozen=True, slots=True)
class IndexSource:
    """What an output of indices comes from.

    `exact`: it chooses from inputs as they are; `first`: of equals the first is owed then.
    """

    exact: bool
    first: bool


def index_source(fp: FunctionalProblem, output: str) -> IndexSource | None:
    """Return where the indices of an output come from; None where they were computed with, or are no such."""
    nodes: dict[str, Node] = {node.name: node for node in fp.nodes}
    node = nodes.get(output)
    while node is not None and not operator(node.op).tells_equals_apart:
        source = node.args[0] if node.args else None
        passed_on = node.op == "getitem" or operator(node.op).cast
        node = nodes.get(source.name) if passed_on and isinstance(source, Ref) else None
    return None if node is None else _source(node, as_they_are(fp))


def is_rounded(fp: FunctionalProblem, output: str) -> bool:
    """Return whether an output of whole numbers counts, or comes of others by a cast: it is a number and no place."""
    nodes = {node.name: node for node in fp.nodes}
    dtypes = {a.name: a.spec.dtype for a in fp.tensors} | {n.name: n.outputs[0].dtype for n in fp.nodes if n.outputs}
    node = nodes.get(output)
    while node is not None and node.args and isinstance(source := node.args[0], Ref):
        traits = operator(node.op)
        if base_name(node.op) in COUNTS:
            return True
        if traits.cast and "float" in dtypes.get(source.name, ""):
            return True
        node = nodes.get(source.name) if traits.cast or traits.cost == "layout" else None
    return False


def _source(node: Node, known: set[str]) -> IndexSource:
    """Return what an operator chooses from; `known` are the names of values that are inputs as they are."""
    read = set(names_in((*node.args, *(value for _, value in node.kwargs))))
    stable = dict(node.kwargs).get("stable") is True  # a sort that keeps the order of equals
    return IndexSource(read <= known, stable or operator(node.op).takes_first)


def as_they_are(fp: FunctionalProblem) -> set[str]:
    """Return arguments and what holds nothing but elements of them."""
    found = {a.name for a in fp.tensors}
    for node in fp.nodes:
        traits, read = operator(node.op), set(names_in((*node.args, *(value for _, value in node.kwargs))))
        if read <= found and (traits.exact or traits.cost == "layout" or node.op == "getitem"):
            found.add(node.name)
    return found


def first_of_equals(fp: FunctionalProblem) -> bool:
    """Return whether every place that the problem asks for is the first of equals, and of inputs as they are.

    After arithmetic rounding may part what is equal, or make equal what is not.
    """
    known = as_they_are(fp)
    sources = [_source(node, known) for node in fp.nodes if operator(node.op).tells_equals_apart]
    return bool(sources) and all(source.exact and source.first for source in sources)


def names_in(values: tuple[Value, ...]) -> Iterator[str]:
    """Yield the names of arguments and nodes among the arguments of a node."""
    for value in values:
        if isinstance(value, Ref):
            yield value.name
        elif isinstance(value, tuple):
            yield from names_in(value)
