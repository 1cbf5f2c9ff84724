"""Which outputs hold several whole numbers in the bits of each element, as weights and caches of four bits do.

Comes in: a FunctionalProblem. Goes out: at which bits the numbers of an element begin. For the judge; no torch.
"""

from __future__ import annotations

from rag_kernels.eval.records import FunctionalProblem, Node, Ref
from rag_kernels.eval.traits.aten import base_name, operator
from rag_kernels.eval.traits.input_kinds import INTEGERS

JOINS = frozenset({"bitwise_or", "__or__", "add"})
SHIFTS = frozenset({"bitwise_left_shift", "__lshift__"})


def packed_at(fp: FunctionalProblem, output: str) -> tuple[int, ...]:
    """Return at which bits above the lowest a number begins in each element of an output; none where it is one number.

    Numbers are shifted there, or multiplied by a power of two, and joined by an or or a sum.
    """
    nodes = {node.name: node for node in fp.nodes}
    top, found, waiting = nodes.get(output), set[int](), list[Node]()
    while top is not None and _hands_on(top):
        top = nodes.get(top.args[0].name) if isinstance(top.args[0], Ref) else None
    if top is not None and base_name(top.op) in JOINS and top.outputs[0].dtype in INTEGERS:
        waiting.append(top)
    while waiting:
        node = waiting.pop()
        if bits := _shifted(node):
            found.add(bits)
        elif base_name(node.op) in JOINS or _hands_on(node):
            read = [nodes.get(arg.name) for arg in node.args if isinstance(arg, Ref)]
            waiting += [n for n in read if n is not None and n.outputs and n.outputs[0].dtype in INTEGERS]
    return tuple(sorted(found))


def _hands_on(node: Node) -> bool:
    """Return whether an operator only lays out what it has, or casts it."""
    return bool(node.args) and (operator(node.op).cast or operator(node.op).cost == "layout")


def _shifted(node: Node) -> int:
    """Return by how many bits an operator shifts whole numbers to the left; 0 for others."""
    name, by = base_name(node.op), node.args[1] if len(node.args) > 1 else None
    if not isinstance(by, int) or by <= 0:
        return 0
    if name in SHIFTS:
        return by
    return by.bit_length() - 1 if name == "mul" and not by & (by - 1) else 0
