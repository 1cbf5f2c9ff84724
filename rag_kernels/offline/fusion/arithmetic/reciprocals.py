"""Divisions by what many elements have in common, and exponentials below it, where sixteen bits are owed.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps, in which `x / total` of a row is `x * (1 / total)`
and the reciprocal is taken once a row; that of a number is a number. That rounds twice, in float32: far below the last
bit of a sixteen-bit result, so it is done only where all results have sixteen bits. On a GPU `exp(x - maximum)` is one
operator, too.
"""

from __future__ import annotations

from dataclasses import replace

from rag_kernels.eval.records import FunctionalProblem
from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import STORED_ONLY, is_float
from rag_kernels.offline.ir.expressions import Expr, reciprocal
from rag_kernels.offline.ir.operators import Operator
from rag_kernels.offline.ir.patterns import exponential_below, operands, strip
from rag_kernels.offline.ir.rewriting import rebuilt
from rag_kernels.offline.lowering.steps import Lowered, Stored

SHORT = frozenset({"int32", "int16", "int8", "uint8"})
MODEST = 1e-30  # between it and its reciprocal a number and its reciprocal are normal


def owes_half(fp: FunctionalProblem) -> bool:
    """Return whether every result with fractions has sixteen bits or eight: then float32 may be computed to a few last
    bits.

    Numbers that are quantised to integers are owed exactly: their last bit is one in a hundred.
    """
    dtypes = [spec.dtype for spec in fp.outputs]
    floats = [dtype for dtype in dtypes if is_float(dtype)]
    return bool(floats) and all(dtype in STORED_ONLY for dtype in floats) and SHORT.isdisjoint(dtypes)


def with_reciprocals(lowered: Lowered, *, on_gpu: bool) -> Lowered:
    """Return the steps with divisions by row values replaced, and on a GPU exponentials and sigmoids."""
    made: dict[ir.Value, ir.Value] = {}

    def visit(value: ir.Value) -> ir.Value:
        if value not in made:
            again = rebuilt(value, visit)
            made[value] = _product(again) or (_below(again) or _sigmoid(again) if on_gpu else None) or again
        return made[value]

    steps = (replace(s, value=visit(s.value)) if isinstance(s, Stored) else s for s in lowered.steps)
    return replace(lowered, steps=tuple(steps))


def _product(value: ir.Value) -> ir.Value | None:
    """Return x / r as x * (1 / r)."""
    found = operands(value, Operator.DIV)
    if found is None or value.dtype != "float32":
        return None
    number = _number(found[1])
    if number and not isinstance(found[0], ir.Const | ir.Size):
        return ir.Op(value.dims, "float32", Operator.MUL, (found[0], ir.Const((), "float32", 1 / number)))
    if not _is_of_row(found[1], found[0]):
        return None
    return ir.Op(value.dims, "float32", Operator.MUL, (found[0], reciprocal(Expr(found[1])).value))


def _below(value: ir.Value) -> ir.Value | None:
    """Return exp(x - r) as one operator, for which a GPU multiplies and adds once."""
    found = exponential_below(value)
    if found is None or value.dtype != "float32" or not _is_of_row(found[1], found[0]):
        return None
    return ir.Op(value.dims, "float32", Operator.EXP_BELOW, found)


def _sigmoid(value: ir.Value) -> ir.Value | None:
    """Return x / (1 + exp(y)) with the GPU's short division: the divisor is one at least."""
    found = operands(value, Operator.DIV)
    sums = operands(strip(found[1]), Operator.ADD) if found and value.dtype == "float32" else None
    if found is None or sums is None or not isinstance(sums[0], ir.Const) or sums[0].number != 1 or sums[0].name:
        return None
    grows = isinstance(sums[1], ir.Op) and sums[1].operator in {Operator.EXP, Operator.EXP_BELOW}
    return ir.Op(value.dims, "float32", Operator.DIV_NEAR, found) if grows else None


def _number(value: ir.Value) -> float:
    """Return the number that a value is, if its reciprocal is neither tiny nor huge, else 0."""
    number = float(value.number) if isinstance(value, ir.Const) and not value.name else 0.0
    return number if MODEST < abs(number) < 1 / MODEST else 0.0


def _is_of_row(value: ir.Value, of: ir.Value) -> bool:
    """Return whether many elements of another value have this one in common."""
    return not isinstance(value, ir.Const | ir.Size) and ir.tree_atoms(value) < ir.tree_atoms(of)
