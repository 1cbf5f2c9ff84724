"""Whether a graph tells numbers below the smallest normal one from zero, so that exponentials must keep them.

Comes in: a problem's graph. Goes out: yes or no, by what becomes of exponentials: an order, or a logarithm, of what
was only scaled, chosen or moved since.
"""

from __future__ import annotations

from rag_kernels.eval.records import FunctionalProblem, Node
from rag_kernels.eval.traits.aten import base_name, operator
from rag_kernels.offline.graph.subgraph_match import refs_of


def tells_small_from_zero(fp: FunctionalProblem) -> bool:
    """Return whether exponentials are put in order, or a logarithm is taken of them."""
    small: set[str] = set()
    for node in fp.nodes:
        name, reads = base_name(node.op), not small.isdisjoint(refs_of(node))
        if reads and (operator(name).tells_equals_apart or name.startswith("log")):
            return True
        if _is_exponential(name) or (reads and _carries(node)):
            small.add(node.name)
    return False


def _is_exponential(name: str) -> bool:
    return operator(name).fades or (name.endswith("softmax") and not name.endswith("log_softmax"))


def _carries(node: Node) -> bool:
    """Return whether results are as small as operands: a sum has others beside them."""
    name = base_name(node.op)
    known = operator(name)
    scaled = known.elementwise and name not in {"add", "sub", "rsub"}
    return scaled or known.exact or known.view or known.pieces or known.cost == "layout"
