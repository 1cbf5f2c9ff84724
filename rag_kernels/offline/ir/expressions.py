"""Pointwise expressions, composed of operators as Python writes them: `x / (1 + exp(-x))`.

Comes in: values that share loops, and numbers. Goes out: the `Op` at an expression's root. Operands are promoted to one
dtype by casts, as PyTorch promotes tensors; a number takes the dtype of the value beside it. Knows nothing of graphs,
and nothing of languages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from rag_kernels.offline.ir import values as ir
from rag_kernels.offline.ir.dtypes import is_float, promoted
from rag_kernels.offline.ir.operators import Operator, Types

LAST = (1 << 63) - 1  # of int64
Operand: TypeAlias = "Expr | ir.Value | int | float"


@dataclass(frozen=True, slots=True, eq=False)
class Expr:
    """A value that Python's operators combine. `==` is not among them: see `equal`."""

    value: ir.Value

    @property
    def dtype(self) -> str:
        return self.value.dtype

    def __add__(self, other: Operand) -> Expr:
        return apply(Operator.ADD, self, other)

    def __radd__(self, other: Operand) -> Expr:
        return apply(Operator.ADD, other, self)

    def __sub__(self, other: Operand) -> Expr:
        return apply(Operator.SUB, self, other)

    def __rsub__(self, other: Operand) -> Expr:
        return apply(Operator.SUB, other, self)

    def __mul__(self, other: Operand) -> Expr:
        return apply(Operator.MUL, self, other)

    def __rmul__(self, other: Operand) -> Expr:
        return apply(Operator.MUL, other, self)

    def __truediv__(self, other: Operand) -> Expr:
        return apply(Operator.DIV, self, other)

    def __rtruediv__(self, other: Operand) -> Expr:
        return apply(Operator.DIV, other, self)

    def __neg__(self) -> Expr:
        return apply(Operator.NEG, self)

    def __lt__(self, other: Operand) -> Expr:
        return apply(Operator.LT, self, other)

    def __le__(self, other: Operand) -> Expr:
        return apply(Operator.LE, self, other)

    def __gt__(self, other: Operand) -> Expr:
        return apply(Operator.GT, self, other)

    def __ge__(self, other: Operand) -> Expr:
        return apply(Operator.GE, self, other)

    def __and__(self, other: Operand) -> Expr:
        return apply(Operator.AND, self, other)

    def __or__(self, other: Operand) -> Expr:
        return apply(Operator.OR, self, other)


Pointwise = Callable[..., Expr]


def apply(operator: Operator, *operands: Operand) -> Expr:
    """Return the operator over its operands, which are cast to what it takes."""
    types = operator.traits.types
    if types is Types.CHOSEN:
        first, *rest = operands
        args = [truth(first), *alike(rest)]
    elif types is Types.LOGICAL:
        args = [truth(x) for x in operands]
    elif types is Types.FRACTIONS:
        args = alike(operands, fractions=True)
    else:
        args = alike(operands)
    result = "bool" if types in {Types.COMPARED, Types.LOGICAL} else args[-1].dtype
    return Expr(ir.Op(broadcast(args), result, operator, tuple(args)))


def broadcast(values: Iterable[ir.Value]) -> tuple[ir.Group, ...]:
    """Return the dimensions of values that share loops, counted from the last: the first group that has loops."""
    values = tuple(values)
    rank = max((len(v.dims) for v in values), default=0)
    return tuple(
        next((v.dims[place] for v in values if len(v.dims) >= -place and v.dims[place]), ())
        for place in range(-rank, 0)
    )


def alike(operands: Iterable[Operand], *, fractions: bool = False) -> list[ir.Value]:
    """Return the operands as values of one dtype, one that has fractions if these are wanted."""
    found: list[ir.Value | int | float] = [x.value if isinstance(x, Expr) else x for x in operands]
    dtype = promoted([x.dtype for x in found if isinstance(x, ir.Value)])
    numbers = [x for x in found if not isinstance(x, ir.Value)]
    if not is_float(dtype) and (fractions or any(isinstance(x, float) for x in numbers)):
        dtype = "float32"
    if dtype == "bool" and any(not isinstance(x, bool) for x in numbers):
        dtype = "int64"
    return [cast_value(x, dtype) if isinstance(x, ir.Value) else ir.Const((), dtype, x) for x in found]


def cast_value(value: ir.Value, dtype: str) -> ir.Value:
    """Return the value in another dtype: a number is written in it, anything else is cast."""
    if value.dtype == dtype:
        return value
    if isinstance(value, ir.Size):
        return ir.Size(value.dims, dtype, value.group)
    if isinstance(value, ir.Const):
        return ir.Const(value.dims, dtype, value.number, value.name)
    return ir.Op(value.dims, dtype, Operator.CAST, (value,))


def truth(x: Operand) -> ir.Value:
    """Return whether a value is not zero; a truth value is itself."""
    value = x.value if isinstance(x, Expr) else x if isinstance(x, ir.Value) else ir.Const((), "bool", bool(x))
    return value if value.dtype == "bool" else apply(Operator.NE, value, 0).value


def cast(x: Expr, dtype: str) -> Expr:
    return Expr(cast_value(x.value, dtype))


def unary(operator: Operator) -> Callable[[Expr], Expr]:
    """Return the function of an operator on one operand."""
    return lambda x: apply(operator, x)


def binary(operator: Operator) -> Callable[[Operand, Operand], Expr]:
    """Return the function of an operator on two operands."""
    return lambda x, y: apply(operator, x, y)


def rounding(operator: Operator) -> Callable[[Expr], Expr]:
    """Return the function of an operator that leaves whole numbers as they are."""
    return lambda x: apply(operator, x) if is_float(x.dtype) else x


add, sub, mul, div = map(binary, (Operator.ADD, Operator.SUB, Operator.MUL, Operator.DIV))
equal, differ = binary(Operator.EQ), binary(Operator.NE)
less, at_most, greater, at_least = map(binary, (Operator.LT, Operator.LE, Operator.GT, Operator.GE))
both, either = binary(Operator.AND), binary(Operator.OR)
maximum, minimum, power = binary(Operator.MAXIMUM), binary(Operator.MINIMUM), binary(Operator.POW)
no_less, no_more = binary(Operator.NO_LESS), binary(Operator.NO_MORE)
quotient, rest = binary(Operator.QUOTIENT), binary(Operator.REST)
negative, absolute, inverse = unary(Operator.NEG), unary(Operator.ABS), unary(Operator.NOT)
floor, ceil, nearest, trunc = map(rounding, (Operator.FLOOR, Operator.CEIL, Operator.ROUND, Operator.TRUNC))
sqrt, exp, expm1, log, log1p = map(unary, (Operator.SQRT, Operator.EXP, Operator.EXPM1, Operator.LOG, Operator.LOG1P))
tanh, erf, erfc, softplus = map(unary, (Operator.TANH, Operator.ERF, Operator.ERFC, Operator.SOFTPLUS))
sin, cos = map(unary, (Operator.SIN, Operator.COS))


def exp2(x: Expr) -> Expr:
    """Return 2 to the power of x, which is cheap where x is a whole number."""
    return apply(Operator.EXP2_WHOLE if is_whole(x.value) else Operator.EXP2, x)


def is_whole(value: ir.Value) -> bool:
    """Return whether a value is made of integers alone: their sums and differences, as floats."""
    match value:
        case ir.Const(number=number, name=""):
            return not is_float(value.dtype) or float(number).is_integer()
        case ir.Op(operator=Operator.ADD | Operator.SUB | Operator.NEG | Operator.SAME):
            return all(map(is_whole, value.args))
        case ir.Op(operator=Operator.CAST):
            return is_whole(value.args[0])
        case _:
            return not is_float(value.dtype) and value.dtype not in {"maxsum", "place"}


def where(condition: Operand, x: Operand, y: Operand) -> Expr:
    """Return x where the condition holds, and y elsewhere."""
    return apply(Operator.WHERE, condition, x, y)


def is_nan(x: Expr) -> Expr:
    return differ(x, x)


def is_negative(x: Expr) -> Expr:
    """Return whether a number is below zero, or the zero below zero."""
    return where(equal(x, 0), 1 / x < 0, x < 0)


def hit_place(x: Expr, best: Expr, place: Expr) -> Expr:
    """Return the index of an element that is the extreme, or NaN; beyond every index elsewhere."""
    return where(either(equal(x, best), is_nan(x)), place, LAST)


def square(x: Expr) -> Expr:
    return x * x


def reciprocal(x: Expr) -> Expr:
    return 1 / x


def rsqrt(x: Expr) -> Expr:
    return 1 / sqrt(x)


def sigmoid(x: Expr) -> Expr:
    return 1 / (1 + exp(-x))


def silu(x: Expr) -> Expr:
    return x / (1 + exp(-x))
