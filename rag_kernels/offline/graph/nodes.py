"""Nodes of ATen graphs: what a value refers to, an argument by position or keyword.

Comes in: a node of a functional problem. Goes out: names and values of it. Its operator is told by `eval.traits.aten`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rag_kernels.eval.records import Node, Ref, Value


def refs(value: Value) -> Iterable[str]:
    """Yield the names that a value refers to, in order."""
    if isinstance(value, Ref):
        yield value.name
    elif isinstance(value, tuple):
        for item in value:
            yield from refs(item)


def given(node: Node, position: int, name: str = "", default: Any = None) -> Any:
    """Return an argument of the operator by position or keyword, or the default."""
    if len(node.args) > position:
        return node.args[position]
    return dict(node.kwargs).get(name, default)
