"""Which values of a graph several products read as factors: a gradient that both gradients of a linear layer take.

Comes in: a problem's graph. Goes out: names of values that are better stored than computed again by each product, which
would read all that they are computed from, element by element where one has its lanes side by side.
"""

from __future__ import annotations

from collections import Counter
from math import isqrt, prod

from rag_kernels.eval.records import FunctionalProblem, Ref, TensorArgument, TensorSpec
from rag_kernels.eval.traits.aten import base_name, operator

FACTORS = {"mm": (0, 1), "bmm": (0, 1), "matmul": (0, 1), "linear": (0, 1), "addmm": (1, 2), "baddbmm": (1, 2)}
FACTORS["_scaled_mm"] = (0, 1)
READ_OFTEN = 512  # times that products read an element: then it costs more to compute than to store


def shared_factors(fp: FunctionalProblem) -> frozenset[str]:
    """Return the values that two products or more read, through views too, each of their elements often."""
    specs: dict[str, TensorSpec] = {a.name: a.spec for a in fp.arguments if isinstance(a, TensorArgument)}
    root, products, reads = dict[str, str](), Counter[str](), Counter[str]()
    for node in fp.nodes:
        specs |= {node.name: node.outputs[0]} if node.outputs else {}
        name, source = base_name(node.op), node.args[0] if node.args else None
        if operator(name).view and isinstance(source, Ref):
            root[node.name] = root.get(source.name, source.name)
        factors = [node.args[place] for place in FACTORS.get(name, ()) if place < len(node.args)]
        names = [factor.name for factor in factors if isinstance(factor, Ref)]
        if len(names) == 2 and all(n in specs for n in names):
            of_left, of_right, of_result = (prod(specs[n].shape) for n in (*names, node.name))
            for n, mine, other in ((names[0], of_left, of_right), (names[1], of_right, of_left)):
                products[root.get(n, n)] += 1
                reads[root.get(n, n)] += isqrt(of_result * other // max(1, mine))  # of a matrix: the other's lanes
    return frozenset(n for n, count in products.items() if count > 1 and reads[n] >= READ_OFTEN)
