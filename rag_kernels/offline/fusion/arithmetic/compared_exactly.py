"""Numbers that are compared for equality: each product below is rounded before it is added to, as PyTorch rounds it.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps. A compiler fuses a product and a sum as it likes,
in one kernel so and in another so: what both compute is then not equal in its last bit (a colour beside the greatest of
the three, what lies at a maximum whose gradient is wanted), and a difference of equal products is not zero. On a GPU
alone: there each nest is a kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.reductions import Kind
from rag_kernels.offline.ir.rewriting import rebuilt
from rag_kernels.offline.lowering.steps import Lowered, values_of, with_values

CHOSEN = frozenset({Kind.MAX, Kind.MIN, Kind.FASTMAX})  # what they give is one of what they are given


def compared_exactly(lowered: Lowered) -> Lowered:
    """Return the steps with every product of float32 below an equality rounded, wherever it is computed."""
    every = tuple(value for step in lowered.steps for value in values_of(step))
    products = {v for v in ir.walk(*_compared(every), enter=_is_passed) if _is_product(v)}
    if not products:
        return lowered
    made: dict[ir.Value, ir.Value] = {}
    for v in ir.walk(*every):
        again = rebuilt(v, made.__getitem__)
        made[v] = ir.Op(v.dims, v.dtype, Operator.MUL_ROUNDED, ir.children(again)) if v in products else again
    return replace(lowered, steps=tuple(with_values(step, made.__getitem__) for step in lowered.steps))


def _compared(values: tuple[ir.Value, ...]) -> Iterator[ir.Value]:
    """Yield the operands of equalities; whether a number is itself asks for NaN."""
    for v in ir.walk(*values):
        if isinstance(v, ir.Op) and v.operator in (Operator.EQ, Operator.NE) and v.args[0] is not v.args[1]:
            yield from v.args


def _is_passed(value: ir.Value) -> bool:
    return not isinstance(value, ir.Scan) and (not isinstance(value, ir.Reduce) or value.kind in CHOSEN)


def _is_product(value: ir.Value) -> bool:
    return isinstance(value, ir.Op) and value.operator is Operator.MUL and value.dtype == "float32"
