"""Divisions by what many elements have in common, as products with its reciprocal, where sixteen bits are owed.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps, in which `x / total` of a row is `x * (1 / total)`
and the reciprocal is taken once a row. That rounds twice, in float32: far below the last bit of a sixteen-bit result,
so it is done only where all results have sixteen bits.
"""

from __future__ import annotations

from dataclasses import replace

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.fusion.regions import rewrite
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import HALF, is_float
from rag_kernels.offline.ir.expressions import Expr, reciprocal
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import operands
from rag_kernels.offline.lowering.lower import Lowered, Stored


def owes_half(fp: FunctionalProblem) -> bool:
    """Return whether every result with fractions has sixteen bits: then float32 may be computed to a few last bits."""
    floats = [spec.dtype for spec in fp.outputs if is_float(spec.dtype)]
    return bool(floats) and all(dtype in HALF for dtype in floats)


def with_reciprocals(lowered: Lowered) -> Lowered:
    """Return the steps with divisions by row values replaced."""
    steps = (replace(s, value=rewrite(s.value, _product)) if isinstance(s, Stored) else s for s in lowered.steps)
    return replace(lowered, steps=tuple(steps))


def _product(value: ir.Value) -> ir.Value | None:
    found = operands(value, Operator.DIV)
    if found is None or value.dtype != "float32":
        return None
    x, by = (rewrite(argument, _product) for argument in found)
    if isinstance(by, ir.Const | ir.Size) or not ir.tree_atoms(by) < ir.tree_atoms(x):
        return None
    return ir.Op(value.dims, "float32", Operator.MUL, (x, reciprocal(Expr(by)).value))
