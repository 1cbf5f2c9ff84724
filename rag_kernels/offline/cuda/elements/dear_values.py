"""Which value of a row a thread keeps from the last reductions to the stores: what is dear to compute again.

Comes in: the passes of a region, and how many elements a thread keeps. Goes out: a value that is worth its registers.
"""

from __future__ import annotations

from rag_kernels.offline.cuda.reduce_loops import ReduceLoops
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Operator

MOST, LEAST_STEPS = 32, 3  # floats that a thread keeps; operators of a value, of fewer of which none are


def dear_value(region: ReduceLoops, elements: int) -> ir.Op | None:
    """Return the longest value with a costly one in it that the last reductions compute of each element, and the stores
    use again.

    An exponential of what is loaded, or of that times a number, is as soon computed again; that of a mask is not.
    """
    guarded = any(v.guards for v in region.reductions(region.top))
    if not 0 < elements <= MOST or region.has_scan() or guarded:
        return None

    def within(*roots: ir.Value) -> list[ir.Op]:
        values = ir.walk(*roots, enter=lambda v: not isinstance(v, ir.Reduce))
        return [v for v in values if isinstance(v, ir.Op) and region.is_inner(v)]

    stored, found, longest = set(within(*region.inner_stores().values())), None, LEAST_STEPS - 1
    for value in within(*(v.arg for v in region.reductions(region.top))):
        steps = [v for v in within(value) if v.operator not in {Operator.CAST, Operator.SAME}]
        dear = value.dtype == "float32" and any(v.operator.traits.costly for v in steps)
        if dear and value in stored and len(steps) > longest:
            found, longest = value, len(steps)
    return found
