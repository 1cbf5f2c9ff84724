"""The nodes of a recorded problem run one by one: a rewrite changes these, and not the source."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_map

from rag_kernels.eval.records import FunctionalProblem, Ref


def run_nodes(fp: FunctionalProblem, given: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return what a problem's nodes give for these tensors, in the order of its arguments."""
    known: dict[str, Any] = {a.name: value for a, value in zip(fp.tensors, given, strict=True)}

    def told(value: Any) -> Any:
        if isinstance(value, Ref):
            return known[value.name]
        return getattr(torch, value[6:]) if isinstance(value, str) and value.startswith("torch.") else value

    for node in fp.nodes:
        args, kwargs = tree_map(told, (node.args, dict(node.kwargs)))
        name, _, overload = node.op.removeprefix("aten.").partition(".")
        function = operator.getitem if name == "getitem" else getattr(getattr(torch.ops.aten, name), overload)
        known[node.name] = function(*args, **kwargs)
    return [known[name] for name in fp.results]
