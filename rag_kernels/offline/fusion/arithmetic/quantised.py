"""Quotients by what neighbours have in common that become numbers of eight bits: no division an element.

Comes in: the steps of `lowering/lower.py`. Goes out: the same steps, in which the `x / s` of `round(x / s)`, below a
cast to integers of eight bits, or of a quotient that is rounded to floats of eight, is one operator of x, s and 1 / s.
What a row has in common is computed once a row: the reciprocal, and before it a power of two that keeps it, and what a
product with it leaves, among the normal numbers. The operator is a product that is corrected once. Up to 256 it rounds
to the integers of the division, none other, as `tests/bench/quantised_integers.cpp` finds of every float there is;
beyond, and for floats of eight bits, it is within the last bit of float32. For GPUs, where a division takes as long as
a dozen sums.
"""

from __future__ import annotations

from dataclasses import replace

from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import FLOAT8
from rag_kernels.offline.ir.expressions import Expr, absolute, apply, cast_value, reciprocal, where
from rag_kernels.offline.ir.operators import Operator, Types
from rag_kernels.offline.ir.patterns import NARROWED, operands, strip
from rag_kernels.offline.ir.rewriting import rebuilt, rewrite
from rag_kernels.offline.lowering.steps import Lowered, Step, Stored, with_values

EIGHT_BITS = frozenset({"int8", "uint8"})
BETWEEN = {op for op in Operator if op.traits.types in {Types.COMPARED, Types.LOGICAL, Types.CHOSEN}} | {
    Operator.SAME,
    Operator.ADD,
    Operator.SUB,
    Operator.MAXIMUM,
    Operator.MINIMUM,
    Operator.NO_LESS,
    Operator.NO_MORE,
}
"""What may stand between the quotient and the cast: bounds, and a zero point."""
MODEST = 2.0**60  # of a divisor: none that is greater, or less than its reciprocal, has a normal remainder,
SCALE = 2.0**64  # so that it is divided by this number, or multiplied


def with_quantised(lowered: Lowered) -> Lowered:
    """Return the steps with quotients that become integers of eight bits replaced."""
    made: dict[ir.Value, ir.Value] = {}
    rows: dict[ir.Value, tuple[Expr, Expr, Expr]] = {}

    def of_row(divisor: ir.Value) -> tuple[Expr, Expr, Expr]:
        """Return the power of two, the divisor times it, and the reciprocal of that."""
        if divisor not in rows:
            size = absolute(Expr(divisor))
            one = Expr(ir.Const((), "float32", 1.0))
            factor = where(size < 1 / MODEST, SCALE, where(size > MODEST, 1 / SCALE, one))
            rows[divisor] = factor, Expr(divisor) * factor, reciprocal(Expr(divisor) * factor)
        return rows[divisor]

    def change(value: ir.Value) -> ir.Value | None:
        found = _rounded_quotient(value)
        if found is None:
            return None if isinstance(value, ir.Op) and value.operator in BETWEEN else value
        factor, divisor, inverse = of_row(found[1])
        return apply(Operator.ROUND, apply(Operator.RATIO, Expr(found[0]) * factor, divisor, inverse)).value

    def change_float(value: ir.Value) -> ir.Value | None:
        found = _quotient(value)
        if found is None:
            return None if isinstance(value, ir.Op) and value.operator in BETWEEN else value
        factor, divisor, inverse = of_row(found[1])
        return apply(Operator.RATIO, Expr(found[0]) * factor, divisor, inverse).value

    def visit(value: ir.Value) -> ir.Value:
        if value not in made:
            again = rebuilt(value, visit)
            below = operands(again, Operator.CAST) if again.dtype in EIGHT_BITS else None
            if below:
                made[value] = cast_value(rewrite(below[0], change), again.dtype)
            elif isinstance(again, ir.Op) and NARROWED.get(again.operator) in FLOAT8:
                within = rewrite(again.args[0], change_float)
                made[value] = ir.Op(again.dims, again.dtype, again.operator, (within,))
            else:
                made[value] = again
        return made[value]

    def stored(step: Step) -> Step:
        """Return the step with its quotients replaced: what is stored in eight bits is rounded to these there."""
        step = with_values(step, visit)
        narrow = isinstance(step, Stored) and step.spec.dtype in FLOAT8
        return replace(step, value=rewrite(step.value, change_float)) if narrow and isinstance(step, Stored) else step

    return replace(lowered, steps=tuple(stored(step) for step in lowered.steps))


def _rounded_quotient(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return x and s of round(x / s), where neighbours have s in common."""
    rounded = operands(value, Operator.ROUND)
    return _quotient(strip(rounded[0])) if rounded else None


def _quotient(value: ir.Value) -> tuple[ir.Value, ir.Value] | None:
    """Return x and s of x / s, where neighbours have s in common."""
    found = operands(value, Operator.DIV)
    if found is None or value.dtype != "float32" or isinstance(found[1], ir.Const | ir.Size):
        return None
    last = {leaf for atom in value.dims[-1] for leaf in atom.leaves()} if value.dims else set()
    return None if not last or last & ir.tree_atoms(found[1]) else (found[0], found[1])
