"""Concatenations that grow: `cat([a, b])`, `cat([a, b, c])`... along one dimension are one tensor, filled bit by bit.

Comes in: a graph. Goes out: for each concatenation the longest one that begins with all of its operands. A dense block
of n layers so writes every feature once, and not into n tensors.
"""

from __future__ import annotations

from collections.abc import Iterator

from rag_kernels.eval.records import FunctionalProblem, Node, Ref, TensorArgument, TensorSpec


def growing(fp: FunctionalProblem) -> dict[str, Node]:
    """Return by each concatenation's name the longest concatenation that begins with its operands.

    Where none is longer that is the node itself.
    """
    cats = list(_concatenations(fp))
    return {
        node.name: max(
            (other for other, theirs, along in cats if theirs[: len(operands)] == operands and along == dim),
            key=lambda other: other.outputs[0].shape[dim],
        )
        for node, operands, dim in cats
    }


def _concatenations(fp: FunctionalProblem) -> Iterator[tuple[Node, list[str], int]]:
    """Yield concatenations of tensors of one kind, with their operands and dimension."""
    specs: dict[str, TensorSpec] = {a.name: a.spec for a in fp.arguments if isinstance(a, TensorArgument)}
    for node in fp.nodes:
        if len(node.outputs) == 1:
            specs[node.name] = node.outputs[0]
        if node.op != "aten.cat.default" or not isinstance(node.args[0], tuple):
            continue
        operands = [operand.name for operand in node.args[0] if isinstance(operand, Ref)]
        dim = node.args[1] if len(node.args) > 1 else dict(node.kwargs).get("dim", 0)
        kinds = {(specs[name].dtype, len(specs[name].shape)) if name in specs else None for name in operands}
        spec = node.outputs[0]
        if kinds == {(spec.dtype, len(spec.shape))} and isinstance(dim, int):
            yield node, operands, dim % len(spec.shape)
